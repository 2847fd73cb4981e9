"""The quickstart with a pause in every shard of `Tokenize` and frequent checkpoints, so that a test can kill it there.

The pauses are placement: every digest equals that of the quickstart itself.
"""

import time
from typing import Annotated, ClassVar

from quickstart import quickstart as whole

from marin import Context, FileRef, Output, Shard, Tokenize, Tokens, Train, pipeline
from marin.base.json import Json
from marin.data import tokenize

PAUSE_SECONDS = 0.7


def tokenize_slowly(
    shard: Shard, output: Output, *, tokenizer: FileRef, eos: str, bos: None, special_in_text: str
) -> Json:
    time.sleep(PAUSE_SECONDS)
    return tokenize.tokenize_shard(
        shard, output, tokenizer=tokenizer, eos=eos, bos=bos, special_in_text=special_in_text
    )


class SlowContext:
    """A context whose map pauses; all else is the engine's own."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx

    def __getattr__(self, name: str) -> object:
        return getattr(self._ctx, name)

    def map(self, fn: object, shards: object, /, **config: object) -> object:
        return self._ctx.map(tokenize_slowly, shards, **config)


class SlowTokenize(Tokenize):
    declared_name: ClassVar[str] = "tokenize"

    def run(self, ctx: Context) -> Tokens:
        return super().run(SlowContext(ctx))


@pipeline
def slow(files: str, ranks: int = 1, tokens: Annotated[int, "tokens"] = 20_000):
    """The quickstart, slowed down."""
    steps = whole(files=files, tokens=tokens, vocab_size=512, context=32, ranks=ranks)
    export = next(step for step in steps if step.step_name() == "export")
    model = export.checkpoint
    shuffle = model.data
    slowed = SlowTokenize(documents=shuffle.tokens.documents, tokenizer=shuffle.tokens.tokenizer)
    data = type(shuffle)(tokens=slowed, context=shuffle.context, seed=shuffle.seed)
    fields = {name: getattr(model, name) for name in Train.model_fields}
    train = Train(**{**fields, "data": data, "checkpoint_seconds": 0.3, "log_every": 1}).on(cpus=2 / ranks, ranks=ranks)
    return [train, type(export)(checkpoint=train)]
