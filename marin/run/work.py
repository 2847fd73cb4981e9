"""One step of a run as the engine sees it: a mutable record whose state only the engine moves."""

from dataclasses import dataclass, field

from marin.base.json import Json
from marin.graph.plan import PlannedStep
from marin.graph.produced import Produced
from marin.run.failure import Failure
from marin.run.order import Report
from marin.run.result import State, StepResult
from marin.run.retry import Budget
from marin.store import Lease

ENDED = ("cached", "done", "failed", "blocked", "stopped")


@dataclass(eq=False, slots=True)
class Work:
    """A planned step, what it waits for, and what has come of it."""

    planned: PlannedStep
    budget: Budget
    unmet: int
    """Parents without an artifact yet."""
    children: list["Work"] = field(default_factory=list)
    state: State = "waiting"
    resolved: str | None = None
    """The resolved fingerprint, once all parents are committed."""
    produced: Produced | None = None
    lease: Lease | None = None
    replaces: str | None = None
    """The attempt whose result does not count, because its step's source has drifted."""
    busy_with: str | None = None
    """The run that holds the lease instead."""
    attempts: int = 0
    began: float = 0.0
    seconds: float = 0.0
    report: Report | None = None
    failure: Failure | None = None

    @property
    def name(self) -> str:
        """The name in the plan."""
        return self.planned.name

    @property
    def step_name(self) -> str:
        """The declared name of the step's class."""
        return self.planned.step.step_name()

    @property
    def fingerprint(self) -> str:
        """The resolved fingerprint; only once it is known."""
        assert self.resolved is not None
        return self.resolved

    @property
    def ended(self) -> bool:
        """Whether nothing more happens to it in this run."""
        return self.state in ENDED

    def result(self, artifact: str | None) -> StepResult:
        """Return the public record; `artifact` is the URL of the committed folder, if there is one."""
        metrics = self.produced.metrics if self.produced else self.report.metrics if self.report else {}
        error: dict[str, Json] | None = self.failure.error if self.failure else None
        return StepResult(
            name=self.name,
            step=self.step_name,
            state=self.state,
            fingerprint=self.resolved,
            digest=self.produced.digest if self.produced else None,
            artifact=artifact,
            attempts=self.attempts,
            seconds=round(self.seconds, 3),
            shards=self.report.shards if self.report else {},
            metrics=metrics,
            error=error,
        )
