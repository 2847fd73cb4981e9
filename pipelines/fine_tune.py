"""From nothing to a model that answers: a small decoder learns Python source, then sums, whole and through adapters.

    marin run pipelines/fine_tune.py

Some three minutes on two cores. Then put conversations of your own in place of `CONVERSATIONS` (see `Conversations`),
and a downloaded model in place of `base` (see `LoadModel`).
"""

import json
import sysconfig
from typing import Annotated

from pydantic import Field

from marin import (
    AdamW,
    Chat,
    Cosine,
    Decoder,
    Export,
    Files,
    FineTune,
    Generate,
    Lora,
    Pack,
    Records,
    Shuffle,
    Tokenize,
    Train,
    TrainTokenizer,
    WarmupStableDecay,
    pipeline,
)

STANDARD_LIBRARY = sysconfig.get_path("stdlib") + "/**/*.py"
SUMS = {f"What is {a} plus {b}?": f"{a} plus {b} is {a + b}." for a in range(6) for b in range(6)}
CONVERSATIONS = tuple(
    json.dumps({"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]})
    for question, answer in SUMS.items()
)
# A model of `Train` has seen an end of text before every document, so a conversation begins with one.
TEMPLATE = (
    "{{ eos_token }}{% for m in messages %}{% if m.role == 'user' %}User: {{ m.content }}\nModel:"
    "{% else %} {{ m.content }}{{ eos_token }}{% endif %}{% endfor %}"
)
PROMPTS = tuple(f"User: {question}\nModel:" for question in list(SUMS)[::5])


@pipeline
def fine_tune(
    files: Annotated[str, "pattern of the files that the base learns from"] = STANDARD_LIBRARY,
    tokens: Annotated[int, Field(ge=1), "tokens of the base"] = 400_000,
    vocab_size: Annotated[int, "entries of the tokenizer"] = 2048,
    epochs: Annotated[float, Field(gt=0), "passes over the conversations"] = 60.0,
    rank: Annotated[int, Field(ge=1), "rank of the adapters"] = 64,
    ranks: Annotated[int, Field(ge=1), "processes to train with"] = 1,
):
    """Train a base, teach it sums from conversations in two ways, and ask both."""
    documents = Files(
        url=files, exclude=["site-packages/**", "**/dist-packages/**"], on_error="skip", shard_bytes=1_000_000
    )
    tokenizer = TrainTokenizer(documents=documents, vocab_size=vocab_size, every=6)
    base = Train(
        data=Shuffle(tokens=Tokenize(documents=documents, tokenizer=tokenizer), context=128, seed=0),
        model=Decoder(layers=2, width=128, heads=4, qk_norm=True),
        optimizer=AdamW(lr=5e-3),
        schedule=WarmupStableDecay(warmup_steps=10, decay=0.5),
        tokens=tokens,
        batch=16,
    ).named("base")
    chat = Chat(documents=Records(texts=CONVERSATIONS).named("sums"), tokenizer=tokenizer, template=TEMPLATE)
    rows = Pack(tokens=chat, context=128, seed=0, method="best_fit")
    shared = {"init": base, "data": rows, "batch": 4, "schedule": Cosine(warmup_steps=5, final=0.0)}
    whole = FineTune(**shared, epochs=epochs, optimizer=AdamW(lr=3e-3), prompts=PROMPTS[:2], sample_every=50)
    # So small a base has hardly learnt its embeddings, which adapters leave as they are: they need longer to say sums.
    lora = Lora(rank=rank, alpha=4 * rank)
    adapted = FineTune(**shared, epochs=2.5 * epochs, optimizer=AdamW(lr=2e-3), lora=lora)
    tuned = {
        name: model.named(name).on(cpus=1 / ranks, ranks=ranks)
        for name, model in (("whole", whole), ("adapters", adapted))
    }
    asked = [
        Generate(checkpoint=model, prompts=PROMPTS, max_tokens=16).named(f"ask/{name}") for name, model in tuned.items()
    ]
    return [*asked, Export(checkpoint=tuned["adapters"])]
