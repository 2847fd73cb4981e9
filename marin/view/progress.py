"""A run as it stands: events folded into one row a step. Pure; whoever draws asks here.

Invariant: folding the same events in the same order gives the same rows, live or years later.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from marin.base.units import format_seconds

Event = Mapping[str, Any]  # Any: JSON

UNUSUAL = 3.0
"""A shard is worth a word once it runs for so many medians."""
FORMING = "forming a gang"
"""How a gang begins to say that its ranks are being started; nothing says when that is over but their work."""
CURVES = ("loss", "bits_per_byte")
ENDED = ("cached", "done", "failed", "blocked", "stopped")


@dataclass
class StepRow:
    """One step on a screen; a map or a sweep of shards is one row. Of an ended run its record has the last word."""

    name: str
    step: str
    state: str = "waiting"
    detail: str = ""
    done: float = 0
    total: float = 0
    unit: str = ""
    first: tuple[float, str] = (0, "")
    """Units done and time of this attempt's first progress: what an earlier one left is no speed of this one."""
    latest: str = ""
    shards: dict[str, int] = field(default_factory=dict)
    usual: float = 0
    """What half of the shards take, in seconds; 0 while that is not known."""
    long: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Shards that run for long now: host and start of each, by name."""
    metrics: dict[str, Any] = field(default_factory=dict)
    """The last number of each name."""
    attempt: str = ""
    attempts: int = 0
    started: str = ""
    ended: str = ""
    said: str = ""
    """When its state or detail was last told of."""
    took: float | None = None
    """Seconds over all attempts, once the run's record says so."""
    fingerprint: str | None = None
    digest: str | None = None
    artifact: str | None = None
    error: Mapping[str, Any] | None = None
    """`type`, `message`, `where`, `hint`."""
    samples: dict[str, tuple[int, str]] = field(default_factory=dict)
    """What a model in training wrote last after each prompt, and at which step."""
    curve: list[tuple[float, float]] = field(default_factory=list)
    """(tokens or step, `curve_of`), in order of arrival."""
    curve_of: str = "loss"
    """What is told along the way: the first that comes of what is drawn as a curve."""

    @property
    def fraction(self) -> float:
        """How far the step is, 0 to 1."""
        if self.state in ("cached", "done"):
            return 1.0
        return min(self.done / self.total, 1.0) if self.total else 0.0

    @property
    def completed(self) -> float:
        """How many units are done: all of them once the step is, whatever was last said on the way."""
        return self.total if self.state == "done" else self.done

    @property
    def words(self) -> str:
        """State and detail, such as `failed: ValueError: ...`, with no word said twice."""
        told = self.detail.startswith((f"{self.state} ", f"{self.state}:", f"{self.state};"))
        return self.detail if told else f"{self.state}: {self.detail}" if self.detail else self.state

    def seconds(self, now: str) -> float:
        """Return how long the step has run, or ran."""
        if self.took is not None:
            return self.took
        return _between(self.started, self.ended or now) if self.started else 0.0

    @property
    def rate(self) -> float:
        """Units per second of this attempt; 0 while that is not known."""
        seconds = _between(self.first[1], self.latest)
        return max(0.0, self.done - self.first[0]) / seconds if seconds > 0 else 0.0

    @property
    def seconds_left(self) -> float | None:
        """How long the rest takes at this rate; None while that is not known."""
        return (self.total - self.done) / self.rate if self.state == "running" and self.rate else None

    def slowest(self, now: str) -> str:
        """Return in words which shard runs longest, if that is far more than usual; else nothing."""
        if self.state != "running" or not self.long or not self.usual:
            return ""
        name, (host, since) = min(self.long.items(), key=lambda item: item[1][1])
        seconds = _between(since, now)
        if seconds <= UNUSUAL * self.usual:
            return ""
        more = sum(_between(began, now) > UNUSUAL * self.usual for _, began in self.long.values()) - 1
        others = f" ({more} more run long)" if more else ""
        return f"slowest: {name} on {host}, {format_seconds(seconds)}; median {format_seconds(self.usual)}{others}"

    def to_json(self, now: str) -> dict[str, Any]:
        """Return the object that `marin status --json` shows."""
        return {
            "name": self.name,
            "step": self.step,
            "state": self.state,
            "fingerprint": self.fingerprint,
            "digest": self.digest,
            "artifact": self.artifact,
            "attempts": self.attempts,
            "seconds": round(self.seconds(now), 3),
            "shards": {"total": 0, "reused": 0, "computed": 0, **self.shards},
            "metrics": self.metrics,
            "error": self.error,
            "detail": self.detail or self.slowest(now),
            "progress": {"done": self.completed, "total": self.total, "unit": self.unit},
            "started": self.started or None,
            "ended": self.ended or None,
        }


@dataclass
class RunProgress:
    """All rows of a run, by name, in plan order."""

    rows: dict[str, StepRow] = field(default_factory=dict)
    state: str = "running"
    last: str = ""
    """When the newest event was written."""

    @classmethod
    def of(cls, steps: Iterable[tuple[str, str]]) -> "RunProgress":
        """Return a run whose steps (name in the plan, step name) all wait."""
        return cls({name: StepRow(name, step) for name, step in steps})

    def apply(self, events: Sequence[Event]) -> list[StepRow]:
        """Fold events in; return a copy of a row for each change of its state, in order."""
        changed: list[StepRow] = []
        for event in events:
            if event.get("kind") == "run":
                self.state = str(event.get("state", self.state))
            self.last = max(self.last, str(event.get("time", "")))
            row = self.rows.get(str(event.get("name")))
            if row is not None and _apply(row, event):
                changed.append(replace(row))
        return changed


def _apply(row: StepRow, event: Event) -> bool:
    """Fold one event into its row; True when the state or its detail changed."""
    kind = event.get("kind")
    row.fingerprint = str(event["fingerprint"]) if event.get("fingerprint") else row.fingerprint
    if kind == "state":
        return _move(row, event)
    if kind == "progress":
        row.done, row.total, row.unit = event.get("done", 0), event.get("total", 0), str(event.get("unit", ""))
        row.latest = str(event.get("time", ""))
        row.usual = float(event.get("usual", row.usual))
        row.first = row.first if row.first[1] else (row.done, row.latest)
    elif kind == "shards":
        row.shards = {name: int(event.get(name, 0)) for name in ("total", "reused", "computed")}
    elif kind == "exit" and "shard" in event:
        row.long.pop(str(event["shard"]), None)  # its worker is gone
    elif kind == "shard":
        row.long.pop(str(event.get("shard")), None)
        if not event.get("ended"):
            row.long[str(event.get("shard"))] = (str(event.get("host", "")), str(event.get("since", "")))
    elif kind == "sample" and isinstance(said := event.get("sample"), dict):
        row.samples[str(said.get("prompt"))] = (said.get("step", 0), str(said.get("completion")))
    elif kind == "metric" and event.get("rank", 0) == 0:
        values = event.get("values") or {}
        row.metrics.update(values)
        _extend_curve(row, values)
    return kind in ("progress", "metric") and _has_formed(row, event)


def _extend_curve(row: StepRow, values: Mapping[str, Any]) -> None:
    told = [name for name, value in values.items() if name in CURVES and isinstance(value, int | float)]
    if not row.curve and told:
        row.curve_of = told[0]
    if row.curve_of in told:
        x = float(values.get("tokens", values.get("step", len(row.curve))))
        if not row.curve or row.curve[-1][0] != x:  # what is said again of one place is a summary at the end
            row.curve.append((x, float(values[row.curve_of])))


def _has_formed(row: StepRow, event: Event) -> bool:
    """Whether a gang that was forming is now seen at work; the detail is then taken back."""
    time = str(event.get("time", ""))
    if row.state != "running" or not row.detail.startswith(FORMING) or time < row.said:
        return False
    row.detail, row.said = "", time
    return True


def _move(row: StepRow, event: Event) -> bool:
    state, detail = str(event.get("state", "")), str(event.get("detail", ""))
    if row.state in ENDED or (row.state, row.detail, row.attempt) == (state, detail, event.get("attempt", row.attempt)):
        return False
    if event.get("pending") and event.get("attempt") == row.attempt:
        return False  # said by the engine of an attempt that had begun meanwhile
    if state == "running":
        if event.get("attempt") != row.attempt:
            row.attempts, row.first, row.long = row.attempts + 1, (0, ""), {}
        row.attempt = str(event.get("attempt", row.attempt))
        row.started = row.started or str(event.get("time", ""))
    row.digest, row.artifact = event.get("digest") or row.digest, event.get("artifact") or row.artifact
    if state in ENDED:
        row.ended = str(event.get("time", ""))
    row.state, row.detail, row.said = state, detail, str(event.get("time", ""))
    return True


def _between(start: str, end: str) -> float:
    try:
        return max(0.0, (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds())
    except ValueError:
        return 0.0
