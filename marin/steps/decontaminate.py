"""`Decontaminate`: documents without the texts that models are evaluated on."""

from typing import Literal

from pydantic import Field

from marin.base.config import Several
from marin.graph.artifact import Documents
from marin.graph.context import Context
from marin.graph.step import Step


class Decontaminate(Step[Documents]):
    """Documents, and where they hold n-grams of evaluation texts; such documents dropped, masked or only reported."""

    version = 1

    documents: Step[Documents]
    against: Several[Step[Documents]] = Field(min_length=1)
    """Evaluation texts."""
    action: Literal["drop", "mask", "report"]
    ngram: int = Field(default=13, ge=1, le=64)
    """Words in a row that both have; 13 as in Brown et al. (2020), appendix C. Case and punctuation do not count."""
    shortest: int = Field(default=8, ge=1)
    """Words of the shortest evaluation text that is looked for, when it has fewer than `ngram`."""
    mask: str = " "
    """What takes the place of a span under `action="mask"`."""
    samples: int = Field(default=20, ge=0)
    """Contaminated documents shown in `contaminated.jsonl`; all spans are in each shard's `spans.parquet`."""

    def run(self, ctx: Context) -> Documents:
        """Index the evaluation texts, then look through each shard."""
        from marin.data import counts, decontaminate, samples

        texts = decontaminate.index_input([ctx.load(step).shards for step in self.against])
        (index,) = ctx.map(decontaminate.index_ngrams, [texts], ngram=self.ngram, shortest=self.shortest).shards
        mapped = ctx.map(
            decontaminate.decontaminate_shard,
            ctx.load(self.documents).shards,
            ngrams=index.file(decontaminate.NGRAMS),
            evaluation=index.file(decontaminate.EVALUATION),
            action=self.action,
            mask=self.mask,
            samples=self.samples,
        )
        samples.merge_samples(mapped.shards, ctx.output, decontaminate.CONTAMINATED, self.samples)
        meta = {**counts.total(mapped), "evaluation": index.value}
        return Documents.write(ctx.output, shards=mapped.shards, meta=meta)
