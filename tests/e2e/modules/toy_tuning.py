"""A base, and adapters that learn a few answers by heart, with many checkpoints on the way."""

import json

from marin import (
    AdamW,
    Chat,
    Decoder,
    FineTune,
    Generate,
    Lora,
    Pack,
    Records,
    Shuffle,
    Tokenize,
    Train,
    TrainTokenizer,
    pipeline,
)

WORDS = ("red", "blue", "green", "dog", "cat")
ANSWERS = {f"what follows {first}?": second for first, second in zip(WORDS, (*WORDS[2:], *WORDS[:2]), strict=True)}
TEMPLATE = (
    "{{ eos_token }}{% for m in messages %}{% if m.role == 'user' %}Q: {{ m.content }}\nA:"
    "{% else %} {{ m.content }}{{ eos_token }}{% endif %}{% endfor %}"
)
TEXTS = tuple(f"the {number} of {number * 7 % 11} and {word}" for number in range(9) for word in WORDS)


@pipeline
def toy_tuning(ranks: int = 1):
    """Base, adapters, answers."""
    conversations = [
        {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}
        for question, answer in ANSWERS.items()
    ]
    documents = Records(texts=(*TEXTS, *(f"Q: {question}\nA: {answer}" for question, answer in ANSWERS.items())))
    tokenizer = TrainTokenizer(documents=documents.named("texts"), vocab_size=280)
    base = Train(
        data=Shuffle(tokens=Tokenize(documents=documents, tokenizer=tokenizer), context=64, seed=0),
        model=Decoder(layers=1, width=48, heads=2),
        optimizer=AdamW(lr=0.01),
        tokens=64 * 8 * 60,
        batch=8,
    ).named("base")
    chat = Chat(
        documents=Records(texts=tuple(map(json.dumps, conversations))).named("chats"),
        tokenizer=tokenizer,
        template=TEMPLATE,
    )
    tuned = FineTune(
        init=base,
        data=Pack(tokens=chat, context=48, seed=0, method="best_fit"),
        optimizer=AdamW(lr=0.005),
        lora=Lora(rank=8, alpha=16),
        epochs=250.0,
        batch=4,
        checkpoint_seconds=0.1,
        log_every=1,
    ).named("tuned")
    prompts = [f"Q: {question}\nA:" for question in ANSWERS]
    return Generate(checkpoint=tuned.on(ranks=ranks), prompts=prompts, max_tokens=12).named("answers")
