"""`Split`: holds documents out by their hash."""

from typing import Literal

from pydantic import Field

from marin.graph.artifact import Documents
from marin.graph.context import Context
from marin.graph.step import Step


class Split(Step[Documents]):
    """The training or the held-out side of documents; a document never changes sides when others are added."""

    version = 1

    documents: Step[Documents]
    keep: Literal["train", "held_out"]
    fraction: float = Field(gt=0, lt=1)
    """Share of documents held out, 0 to 1."""
    seed: int = Field(default=0, ge=0)

    def run(self, ctx: Context) -> Documents:
        """Filter each shard by the hash of its documents."""
        from marin.data import ingest, split

        mapped = ctx.map(
            split.split_shard,
            ctx.load(self.documents).shards,
            keep=self.keep,
            fraction=self.fraction,
            seed=self.seed,
        )
        return Documents.write(ctx.output, shards=mapped.shards, meta=ingest.total(mapped))
