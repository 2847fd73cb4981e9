"""`EvaluateHarness`: a model's scores on tasks of lm-evaluation-harness."""

from typing import Annotated

from pydantic import Field

from marin.base.config import ElideIf, Placement, Several
from marin.graph.artifact import Checkpoint, Scores
from marin.graph.context import Context
from marin.graph.step import Step


class EvaluateHarness(Step[Scores]):
    """Scores as `TASK/METRIC`, with the versions of the harness and of its tasks, and `items.parquet`.

    Prompts and metrics are the harness', likelihoods and completions marin's. Needs the extra `eval`.
    """

    version = 1
    requires = ("lm-eval",)

    checkpoint: Step[Checkpoint]
    tasks: Several[str] = Field(min_length=1)
    """Names of tasks, groups or tags: of the folder's, or of those that the harness comes with."""
    url: Placement[str] | None = None
    """A folder of YAML files and of the data that they name, pinned by content when planned."""
    num_fewshot: int | None = Field(default=None, ge=0)
    """Examples before each item; None: as each task says."""
    limit: int | None = Field(default=None, ge=1)
    """The first items of each task alone."""
    chat_template: Annotated[bool, ElideIf(False)] = False
    """Ask in a conversation, by the checkpoint's own chat template."""
    seed: int = Field(default=0, ge=0)
    """Of tasks that sample completions."""
    batch_tokens: Placement[int] = Field(default=16_384, ge=1)
    """Tokens in one forward pass; never changes a score beyond rounding."""

    def inputs(self) -> tuple[str, ...]:
        """All files of the folder."""
        return () if self.url is None else (f"{self.url.rstrip('/')}/**",)

    def run(self, ctx: Context) -> Scores:
        """Check the tasks with an answerer that knows the gold, then score them."""
        from marin.evaluate import checkpoint, harness, harness_tasks

        loaded = checkpoint.load_checkpoint(ctx.load(self.checkpoint).contents)
        with harness_tasks.laid_out(ctx.inputs) as folder:
            scores = harness_tasks.score_tasks(
                harness.HarnessModel(loaded, batch_tokens=self.batch_tokens, seed=self.seed),
                self.tasks,
                ctx.output,
                folder=folder,
                num_fewshot=self.num_fewshot,
                limit=self.limit,
                chat_template=self.chat_template,
            )
        ctx.metric(**scores.metrics)
        return Scores.write(ctx.output, scores.metrics, details=scores.details)
