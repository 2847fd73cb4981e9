"""`Split`: holds documents out by their hash, or with all near duplicates."""

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from marin.base.config import ElideIf
from marin.base.json import Json
from marin.data.duplicate_rules import DuplicateRule
from marin.graph.artifact import Documents
from marin.graph.context import Context
from marin.graph.files import Shard
from marin.graph.step import Step


class Split(Step[Documents]):
    """The training or the held-out side of documents.

    A document never changes sides when others are added. With `clusters`, one that is held out never does, and one of
    the training side does only when a document that is held out turns out to be its near duplicate.
    """

    version = 1

    documents: Step[Documents]
    keep: Literal["train", "held_out"]
    fraction: float = Field(gt=0, lt=1)
    """Share of documents held out, 0 to 1."""
    seed: int = Field(default=0, ge=0)
    clusters: Annotated[DuplicateRule | None, ElideIf(None)] = None
    """What makes two documents duplicates, such as `MinHash()`: a cluster is held out whole when one of it is, so that
    of n documents a share of `1 - (1 - fraction) ** n`. None: each text by itself; equal texts agree anyhow."""

    def run(self, ctx: Context) -> Documents:
        """Filter each shard by the hash of its documents; with `clusters`, after finding these."""
        from marin.data import clusters, counts, signatures, split, split_clusters

        shards: Sequence[Shard] = ctx.load(self.documents).shards
        meta: dict[str, Json] = {}
        if self.clusters is not None:
            order = clusters.places(shards)
            signing = ctx.map(signatures.sign_shard, shards, rule=self.clusters).shards
            signed = [signing[at] for at in order]
            owned = ctx.map(split_clusters.own_sides, shards, fraction=self.fraction, seed=self.seed).shards
            paired = ctx.map(clusters.pair_part, clusters.plan_parts(signed)).shards
            spread_input = split_clusters.spread_input(paired, [owned[at] for at in order])
            (spread,) = ctx.map(split_clusters.spread, [spread_input]).shards
            shards = split_clusters.split_inputs(shards, spread)
            meta = split_clusters.numbers(spread)
        mapped = ctx.map(split.split_shard, shards, keep=self.keep, fraction=self.fraction, seed=self.seed)
        return Documents.write(ctx.output, shards=mapped.shards, meta=counts.total(mapped) | meta)
