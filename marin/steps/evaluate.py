"""`Evaluate`: loss, perplexity and bits per byte on documents."""

from pydantic import Field

from marin.base.config import Placement
from marin.graph.artifact import Checkpoint, Documents, Scores
from marin.graph.context import Context
from marin.graph.step import Step


class Evaluate(Step[Scores]):
    """Scores of a model on documents, in all and per source, and `documents.parquet` with the loss of each.

    Every token is scored exactly once, by rolling windows.
    """

    version = 2

    checkpoint: Step[Checkpoint]
    documents: Step[Documents]
    stride: int | None = Field(default=None, ge=1)
    """Tokens that a window moves; None: half of the model's context."""
    batch_tokens: Placement[int] = Field(default=16_384, ge=1)
    """Tokens in one forward pass; never changes a score beyond rounding."""

    def run(self, ctx: Context) -> Scores:
        """Score the documents in ranges, then all together."""
        from marin.evaluate import checkpoint, loss

        mapped = ctx.map(
            loss.score_shard,
            loss.plan_documents(ctx.load(self.documents).shards),
            stride=self.stride,
            batch_tokens=self.batch_tokens,
            **checkpoint.checkpoint_files(ctx.load(self.checkpoint).contents),
        )
        scores = loss.collect(ctx.output, mapped.shards)
        ctx.metric(**scores.metrics)
        return Scores.write(ctx.output, scores.metrics, details=scores.details)
