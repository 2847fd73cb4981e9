"""`Evaluate`: loss, perplexity and bits per byte on documents."""

from pydantic import Field

from marin.base.config import Placement
from marin.graph.artifact import Checkpoint, Documents, Scores
from marin.graph.context import Context
from marin.graph.step import Step


class Evaluate(Step[Scores]):
    """Scores of a model on documents; every token is scored exactly once, by rolling windows."""

    version = 1

    checkpoint: Step[Checkpoint]
    documents: Step[Documents]
    stride: int | None = Field(default=None, ge=1)
    """Tokens that a window moves; None: half of the model's context."""
    batch_tokens: Placement[int] = Field(default=16_384, ge=1)
    """Tokens in one forward pass; never changes a score beyond rounding."""

    def run(self, ctx: Context) -> Scores:
        """Score all documents with the weights of the checkpoint."""
        from marin.evaluate.loss import evaluate_checkpoint

        scores = evaluate_checkpoint(
            ctx.load(self.checkpoint).contents,
            ctx.load(self.documents).shards,
            stride=self.stride,
            batch_tokens=self.batch_tokens,
            progress=ctx.progress,
        )
        ctx.metric(**scores.metrics)
        return Scores.write(ctx.output, scores.metrics, details=scores.details)
