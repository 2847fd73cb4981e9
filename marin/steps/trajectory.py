"""`Trajectory`: how scores change along a training."""

from typing import Any

from pydantic import model_validator

from marin.base.config import Several
from marin.base.errors import ConfigurationError
from marin.base.json import Json, pretty
from marin.graph.artifact import Checkpoint, Folder, Scores
from marin.graph.context import Context
from marin.graph.step import Step


class Trajectory(Step[Folder]):
    """Scores of several checkpoints over tokens: `report.html` with a curve of each metric, and `trajectory.json`."""

    version = 1

    scores: Several[Step[Scores]]
    """One step of scores for each checkpoint, such as `Evaluate(checkpoint=model.at_step(n), ...)`; in any order."""
    metrics: Several[str]
    """Which of their numbers to draw."""
    checkpoints: Several[Step[Checkpoint]] = ()
    """What was scored; by itself the `checkpoint` of each of `scores`."""

    @model_validator(mode="before")
    @classmethod
    def _find_checkpoints(cls, values: Any) -> Any:  # Any: what the user typed
        if isinstance(values, dict) and "checkpoints" not in values:
            scores = values.get("scores", ())
            found = [getattr(step, "checkpoint", None) for step in scores] if isinstance(scores, list | tuple) else []
            return {**values, "checkpoints": tuple(step for step in found if step is not None)}
        return values

    @model_validator(mode="after")
    def _check_together(self) -> "Trajectory":
        if not self.scores or len(self.checkpoints) != len(self.scores):
            raise ConfigurationError(
                f"Trajectory got {len(self.scores)} steps of scores and {len(self.checkpoints)} checkpoints",
                where="Trajectory.scores",
                hint="give one step of scores for each checkpoint; where they have no field `checkpoint`, name both",
            )
        if not self.metrics:
            raise ConfigurationError(
                "Trajectory has no metric to draw", where="Trajectory.metrics", hint="such as metrics=['bits_per_byte']"
            )
        return self

    def run(self, ctx: Context) -> Folder:
        """Read the scores and draw them in the order of tokens."""
        from marin.evaluate import trajectory

        pairs = zip(self.checkpoints, self.scores, strict=True)
        points = sorted(
            trajectory.read_point(ctx.load(checkpoint), ctx.load(scores), self.metrics) for checkpoint, scores in pairs
        )
        for point in points:
            ctx.metric(step=point.step, tokens=point.tokens, **point.values)
        record: dict[str, Json] = {"metrics": list(self.metrics), "points": [point.to_json() for point in points]}
        ctx.output.write("trajectory.json", pretty(record).encode())
        ctx.output.write("report.html", trajectory.page(points, self.metrics).encode())
        return Folder.write(ctx.output, meta={"points": len(points), **points[-1].values})
