"""What a run came to: one record a step, in plan order, and its JSON."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from marin.base.json import Json

State = Literal["cached", "waiting", "running", "done", "failed", "blocked", "stopped"]
RunState = Literal["running", "done", "failed", "stopped"]


@dataclass(frozen=True)
class StepResult:
    """One step of a run: how it stands and what it made."""

    name: str
    step: str
    state: State
    fingerprint: str | None = None
    digest: str | None = None
    artifact: str | None = None
    """URL of the folder that holds the manifest."""
    attempts: int = 0
    seconds: float = 0.0
    shards: Mapping[str, int] = field(default_factory=dict)
    """`total`, `reused`, `computed`, over all maps of the step."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    error: Mapping[str, Json] | None = None
    """`type`, `message`, `where`, `hint`."""

    def to_json(self) -> dict[str, Json]:
        """Return the object that `marin run --json` shows."""
        return {**vars(self), "shards": {"total": 0, "reused": 0, "computed": 0, **self.shards}}


@dataclass(frozen=True)
class RunResult:
    """One run: its state is `done` only when every step is cached or done."""

    run: str
    state: RunState
    store: str
    steps: tuple[StepResult, ...]

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "RunResult":  # Any: JSON
        """Return what the record of a run that has ended says; steps without a result have no more than a state."""
        known = {field.name for field in fields(StepResult)}
        steps = tuple(
            StepResult(**{name: value for name, value in step.items() if name in known and value is not None})
            for step in record.get("steps") or ()
        )
        return cls(str(record.get("run")), record["state"], str(record.get("store")), steps)

    def step(self, name: str) -> StepResult:
        """Return the step called `name` in this run."""
        return self._by_name[name]

    @functools.cached_property
    def _by_name(self) -> dict[str, StepResult]:
        return {step.name: step for step in self.steps}

    def to_json(self) -> dict[str, Json]:
        """Return the object that `marin run --json` shows."""
        steps = [step.to_json() for step in self.steps]
        return {"schema": 1, "run": self.run, "state": self.state, "store": self.store, "steps": steps}
