"""One step of a run as the engine sees it: a mutable record whose state only the engine moves."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from marin.base.json import Json
from marin.graph.plan import PlannedStep
from marin.graph.produced import Produced
from marin.graph.recipe import Accepted, source_of
from marin.graph.step import dependencies
from marin.run.failure import Failure
from marin.run.order import Identity, Order, ParentKey, Report
from marin.run.publish import is_shared, place_of
from marin.run.result import State, StepResult
from marin.run.retry import Budget
from marin.store import Lease, Producer, Store

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
    note: str = ""
    """What a screen says of a result that is used all the same."""
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

    def order(
        self, parents: Sequence["Work"], *, store: Store, run: str, producer: Producer, accepted: Accepted
    ) -> Order:
        """Return the order for an attempt of this number; the lease is held."""
        planned = self.planned
        assert self.lease is not None
        attempt = f"{run}-{self.fingerprint[:8]}-{self.attempts}"
        read_from = tuple(upstream.url for upstream in store.upstreams)
        return Order(
            identity=Identity(store.url, run, self.name, self.step_name, self.fingerprint, attempt, read_from),
            recipe=planned.recipe,
            parents=tuple(
                ParentKey(path, parent.step_name, parent.fingerprint)
                for (path, _), parent in zip(dependencies(planned.step), parents, strict=True)
            ),
            pins=planned.pins,
            resources=planned.step.placed.resources,
            epoch=self.lease.epoch,
            producer=producer,
            source=source.digest if (source := source_of(planned.step)) else None,
            accepted=accepted,
            replaces=self.replaces,
            place=place_of(planned.step) if is_shared(planned.step) else None,
        )

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
