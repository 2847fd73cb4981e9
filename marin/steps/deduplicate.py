"""`Deduplicate`: one document of each cluster of duplicates."""

from pydantic import Field

from marin.data.duplicate_rules import DuplicateRule
from marin.graph.artifact import Documents
from marin.graph.context import Context
from marin.graph.step import Step


class Deduplicate(Step[Documents]):
    """Documents without duplicates; of each cluster the one with the lowest 128-bit id stays, wherever it lies."""

    version = 1

    documents: Step[Documents]
    method: DuplicateRule
    """`Exact()`, or `MinHash(...)` for near duplicates."""
    samples: int = Field(default=20, ge=0)
    """Removed documents in `removed.jsonl`; clusters in `clusters.jsonl`, so many of the largest and of any."""

    def run(self, ctx: Context) -> Documents:
        """Sign each shard, pair by bucket, find clusters, and write each shard without what is removed."""
        from marin.data import clusters, counts, samples, signatures

        documents = ctx.load(self.documents).shards
        signing = ctx.map(signatures.sign_shard, documents, rule=self.method)
        signed = [signing.shards[at] for at in clusters.places(documents)]
        paired = ctx.map(clusters.pair_part, clusters.plan_parts(signed))
        (clustered,) = ctx.map(
            clusters.cluster, [clusters.cluster_input(paired.shards, signed)], shown=self.samples
        ).shards
        mapped = ctx.map(clusters.keep_shard, clusters.removal_inputs(documents, clustered), samples=self.samples)
        samples.merge_samples(mapped.shards, ctx.output, clusters.REMOVED, self.samples)
        shown = ctx.map(clusters.read_rows, clusters.shown_inputs(documents, clustered))
        samples.write_lines(ctx.output, "clusters.jsonl", clusters.report(clustered, shown))
        meta = counts.total(mapped) | clusters.numbers(clustered)
        return Documents.write(ctx.output, shards=mapped.shards, meta=meta)
