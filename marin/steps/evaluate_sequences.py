"""`EvaluateSequences`: loss, perplexity and bits per byte on held-out rows, as training looks at them."""

from typing import Annotated

from pydantic import Field

from marin.base.config import ElideIf, Placement
from marin.graph.artifact import Checkpoint, Scores, Sequences
from marin.graph.context import Context
from marin.graph.step import Step


class EvaluateSequences(Step[Scores]):
    """Scores of a model on held-out sequences, and `sequences.parquet` with the loss of each.

    Every target is scored once, with what stands before it in its row. The loss and the bits per byte are those that
    `Train.validation` shows of as many sequences: for a checkpoint of any run, afterwards. Where models with other
    tokenizers are to be compared, give `Evaluate` the documents instead. The sequences must be tokenized with the
    checkpoint's tokenizer, their `context` at most the model's: DataError otherwise.
    """

    version = 1

    checkpoint: Step[Checkpoint]
    sequences: Step[Sequences]
    document_mask: Annotated[bool, ElideIf(False)] = False
    """Whether documents in one row do not see each other, as in `Train`."""
    batch_tokens: Placement[int] = Field(default=16_384, ge=1)
    """Tokens in one forward pass; never changes a score beyond rounding."""

    def run(self, ctx: Context) -> Scores:
        """Score the sequences in ranges, then all together."""
        from marin.evaluate import checkpoint, rows

        model = ctx.load(self.checkpoint)
        mapped = ctx.map(
            rows.score_rows,
            rows.plan_rows(ctx.load(self.sequences), model),
            documents=self.document_mask,
            batch_tokens=self.batch_tokens,
            **checkpoint.checkpoint_files(model.contents),
        )
        scores = rows.collect_rows(ctx.output, mapped.shards, documents=self.document_mask)
        ctx.metric(**scores.metrics)
        return Scores.write(ctx.output, scores.metrics, details=scores.details)
