"""`Filter`: documents whose scores meet conditions."""

from pydantic import Field

from marin.base.config import Several
from marin.data.conditions import Condition
from marin.graph.artifact import Annotations, Documents
from marin.graph.context import Context
from marin.graph.step import Step


class Filter(Step[Documents]):
    """Documents for which every condition holds; the others are counted by reason, and a sample of them shown."""

    version = 1

    documents: Step[Documents]
    annotations: Several[Step[Annotations]] = Field(min_length=1)
    """Scores of these very documents."""
    keep: Several[Condition] = Field(min_length=1)
    """Conditions in the order in which a dropped document is charged to them."""
    samples: int = Field(default=20, ge=0)
    """Dropped documents shown for each reason, in `removed.jsonl`."""

    def run(self, ctx: Context) -> Documents:
        """Read the scores of each shard and write the documents that are kept."""
        from marin.data import counts, filters, samples

        annotations = [ctx.load(step) for step in self.annotations]
        filters.check_columns(self.keep, [name for scores in annotations for name in scores.meta["columns"]])
        pairs = filters.pair_shards(ctx.load(self.documents).shards, [scores.shards for scores in annotations])
        mapped = ctx.map(filters.filter_shard, pairs, keep=self.keep, samples=self.samples)
        samples.merge_samples(mapped.shards, ctx.output, filters.REMOVED, self.samples)
        return Documents.write(ctx.output, shards=mapped.shards, meta=counts.total(mapped))
