"""From the source of your own Python's standard library to a small language model, in four minutes on two cores.

    marin run pipelines/quickstart.py

Run it again and all is cached. Change something (`--lr 2e-3`, `--files "my/code/**/*.py"`) and only what depends on
it runs. Then copy this file: it is a whole experiment.
"""

import sysconfig
from typing import Annotated

from pydantic import Field

from marin import (
    AdamW,
    CompressionBaseline,
    Decoder,
    Evaluate,
    Export,
    Files,
    Generate,
    Muon,
    Shuffle,
    Split,
    Tokenize,
    Train,
    TrainTokenizer,
    WarmupStableDecay,
    pipeline,
)

STANDARD_LIBRARY = sysconfig.get_path("stdlib") + "/**/*.py"
PROMPTS = ("def __init__(self", "import os\n\ndef read_lines(path):\n", "for name in sorted(")


@pipeline
def quickstart(
    files: Annotated[str, "pattern of the files to learn from"] = STANDARD_LIBRARY,
    lr: Annotated[float, Field(gt=0), "peak learning rate"] = 1e-2,
    tokens: Annotated[int, Field(ge=1), "tokens to train on"] = 1_200_000,
    vocab_size: Annotated[int, "entries of the tokenizer"] = 4096,
    context: Annotated[int, "tokens a sequence"] = 128,
    ranks: Annotated[int, Field(ge=1), "processes to train with"] = 1,
):
    """Train a small decoder on Python source, evaluate it beside gzip and xz, export it to Hugging Face."""
    # A few files of the standard library are deliberately not UTF-8: they are skipped and counted.
    documents = Files(
        url=files, exclude=["site-packages/**", "**/dist-packages/**"], on_error="skip", shard_bytes=1_000_000
    )
    train = Split(documents=documents, keep="train", fraction=0.02).named("split/train")
    held_out = Split(documents=documents, keep="held_out", fraction=0.02).named("split/held-out")
    tokenizer = TrainTokenizer(documents=train, vocab_size=vocab_size, every=6)
    data = Shuffle(tokens=Tokenize(documents=train, tokenizer=tokenizer), context=context, seed=0)
    model = Train(
        data=data,
        model=Decoder(layers=2, width=160, heads=5, qk_norm=True),
        optimizer=Muon(lr=lr, momentum=0.85, weight_decay=0, others=AdamW(lr=3 * lr, weight_decay=0)),
        schedule=WarmupStableDecay(warmup_steps=10, decay=0.5),
        tokens=tokens,
        batch=16,
    ).on(cpus=2 / ranks, ranks=ranks)
    return [
        CompressionBaseline(documents=held_out),
        Evaluate(checkpoint=model, documents=held_out).on(cpus=2),
        Export(checkpoint=model),
        Generate(checkpoint=model, prompts=PROMPTS, max_tokens=40),
    ]
