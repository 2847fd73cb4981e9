"""The steps of one run, and every change of their states: each is told as an event, by this one place.

Invariant: a step moves to an end once; when a parent is committed its children come closer to their turn, when one
fails everything below is blocked. Nothing here asks the store or a backend.
"""

from collections import deque
from collections.abc import Iterator
from typing import Any, Literal

from marin.graph.plan import Plan
from marin.graph.produced import Produced
from marin.run.failure import Failure
from marin.run.result import RunState, State, StepResult
from marin.run.retry import Budget, Cause
from marin.run.work import ENDED, Work
from marin.store import EventWriter, layout


class Works:
    """The steps of a plan by name, in its order."""

    def __init__(self, plan: Plan, events: EventWriter) -> None:
        self.resolvable: deque[Work] = deque()
        """Steps whose parents are all committed, and whose fingerprint is not known yet."""
        self._events = events
        self._works: dict[str, Work] = {}
        for planned in plan.steps:
            work = Work(planned, Budget(planned.step.placed.resources.retries), unmet=len(set(planned.parents)))
            self._works[planned.name] = work
            for parent in set(planned.parents):
                self._works[parent].children.append(work)
            if not work.unmet:
                self.resolvable.append(work)
        self._open = len(self._works)

    def __iter__(self) -> Iterator[Work]:
        return iter(self._works.values())

    @property
    def open(self) -> list[Work]:
        """The steps that have not ended."""
        return [work for work in self if not work.ended] if self._open else []

    @property
    def any_open(self) -> bool:
        """Whether a step has not ended."""
        return self._open > 0

    def parents_of(self, work: Work) -> list[Work]:
        """Return the steps that a step reads."""
        return [self._works[name] for name in work.planned.parents]

    def complete(self, work: Work, produced: Produced, state: Literal["cached", "done"]) -> None:
        """Note a result; children whose last missing parent this was can be resolved."""
        work.produced = produced
        made = {"digest": produced.digest, "artifact": _artifact_of(work) or ""}
        self.move(work, state, **made, **({"detail": work.note} if work.note and state == "cached" else {}))
        for child in work.children:
            child.unmet -= 1
            if not child.unmet and not child.ended:
                self.resolvable.append(child)

    def fail(self, work: Work, failure: Failure) -> None:
        """Note a failure; everything downstream is blocked, every other branch goes on."""
        work.failure = failure
        self.move(work, "failed", detail=failure.message)
        self._block_below(work)

    def leave(self, work: Work, why: str, *, hint: str) -> None:
        """Note that a step is left to another run, and with it everything downstream."""
        self._block(work, why, hint=hint)
        self._block_below(work)

    def move(self, work: Work, state: State, **detail: str) -> None:
        """Change the state of a step, and tell."""
        self._open -= state in ENDED
        work.state = state
        self.emit(work, "state", state=state, **detail)

    def emit(self, work: Work, kind: str, **fields: Any) -> None:  # Any: JSON of the event
        """Tell something of a step."""
        known = {"fingerprint": work.resolved} if work.resolved else {}
        self._events.emit(kind, step=work.step_name, name=work.name, **known, **fields)

    @property
    def state(self) -> RunState:
        """What the run has come to; one that leaves steps to another run, as it was asked to, is done."""
        ended = {work.state for work in self}
        # A map or gang may have seen a request, and kept what it has, before this process did.
        return "stopped" if "stopped" in ended else "failed" if "failed" in ended else "done"

    def results(self) -> tuple[StepResult, ...]:
        """Return the public record of each step."""
        return tuple(work.result(_artifact_of(work)) for work in self)

    def _block_below(self, work: Work) -> None:
        blocked = deque(work.children)
        while blocked:
            child = blocked.popleft()
            if not child.ended:
                self._block(child, f"needs {work.name}", hint=f"it follows once {work.name} is done")
                blocked.extend(child.children)

    def _block(self, work: Work, why: str, *, hint: str) -> None:
        work.failure = Failure(Cause.STOPPED, "blocked", why, f"step {work.name}", hint)
        self.move(work, "blocked", detail=why)


def _artifact_of(work: Work) -> str | None:
    if work.produced is None:
        return None
    return layout.artifact_folder(work.produced.store, work.step_name, work.fingerprint)
