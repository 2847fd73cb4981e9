"""`Pick`: the best of several artifacts, by a score."""

from typing import Generic

from marin.base.config import Several
from marin.base.errors import ConfigurationError, DataError, did_you_mean
from marin.graph.artifact import Artifact, Scores
from marin.graph.context import Context
from marin.graph.step import A_co, Step


class Pick(Step[A_co], Generic[A_co]):
    """The artifact of `among` whose score in `by` is best; nothing is copied."""

    version = 1

    among: Several[Step[A_co]]
    by: Several[Step[Scores]]
    """One step of scores for each of `among`, in the same order."""
    metric: str
    highest: bool

    def model_post_init(self, context: object, /) -> None:
        """Check that every candidate has a score."""
        if len(self.among) != len(self.by) or not self.among:
            raise ConfigurationError(
                f"Pick got {len(self.among)} steps in `among` and {len(self.by)} in `by`",
                where="Pick.by",
                hint="give one step of scores for each candidate, in the same order",
            )

    def artifact_type(self) -> type[Artifact]:
        """The candidates' type."""
        return self.among[0].artifact_type()

    def run(self, ctx: Context) -> A_co:
        """Compare the scores; the first of equals wins."""
        scores = [ctx.load(step).metrics for step in self.by]
        for metrics in scores:
            if self.metric not in metrics:
                hint = did_you_mean(self.metric, metrics) or f"there are {', '.join(sorted(metrics))}"
                raise DataError(f"the scores have no metric `{self.metric}`", where="Pick.metric", hint=hint)
        sign = -1 if self.highest else 1
        best = min(range(len(scores)), key=lambda index: sign * scores[index][self.metric])
        ctx.metric(picked=best)
        return ctx.load(self.among[best])
