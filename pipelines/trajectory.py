"""How a small model learns: its held-out bits per byte at five checkpoints of one training, drawn as a curve.

    marin run pipelines/trajectory.py

Each checkpoint is a step, and so is each of its scores: what is killed continues where it was, and what is there is not
done again. Ask for another point later (`--points 8`): the model is not trained anew.
"""

import sysconfig
from typing import Annotated

from pydantic import Field

from marin import (
    AdamW,
    Decoder,
    Evaluate,
    Files,
    Keep,
    Shuffle,
    Split,
    Tokenize,
    Train,
    TrainTokenizer,
    Trajectory,
    pipeline,
)

STANDARD_LIBRARY = sysconfig.get_path("stdlib") + "/[a-t]*.py"


@pipeline
def trajectory(
    files: Annotated[str, "pattern of the files to learn from"] = STANDARD_LIBRARY,
    steps: Annotated[int, Field(ge=1), "steps to train, of 16 sequences"] = 200,
    points: Annotated[int, Field(ge=1), "checkpoints to evaluate"] = 5,
    vocab_size: Annotated[int, "entries of the tokenizer"] = 2048,
    context: Annotated[int, "tokens a sequence"] = 128,
    ranks: Annotated[int, Field(ge=1), "processes to train with"] = 1,
):
    """Train a small decoder, evaluate it on the way, and draw what it has learnt by when."""
    documents = Files(url=files, on_error="skip", shard_bytes=1_000_000)
    train = Split(documents=documents, keep="train", fraction=0.05).named("split/train")
    held_out = Split(documents=documents, keep="held_out", fraction=0.05).named("split/held-out")
    tokenizer = TrainTokenizer(documents=train, vocab_size=vocab_size, every=2)
    at = [steps * point // points for point in range(1, points + 1) if steps * point // points]
    model = Train(
        data=Shuffle(tokens=Tokenize(documents=train, tokenizer=tokenizer), context=context, seed=0),
        model=Decoder(layers=2, width=96, heads=3),
        optimizer=AdamW(lr=5e-3),
        tokens=steps * 16 * context,
        batch=16,
        keep=Keep(at=at),
    ).named("train")
    model = model.on(cpus=2 / ranks, ranks=ranks)
    scores = [
        Evaluate(checkpoint=model.at_step(step), documents=held_out).named(f"evaluate/step-{step}") for step in at
    ]
    return Trajectory(scores=scores, metrics=["bits_per_byte", "loss"])
