"""The numbers that the steps of a run recorded, as points in order: what plots, tables and exporters are made of.

Invariant: a point is what one event said. Of a gang only rank 0 speaks, as on every screen.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from marin.base.json import Json
from marin.store import EventReader
from marin.view.progress import Event

COUNTED = "step"
"""The number that says which step of a training a point is of."""


@dataclass(frozen=True)
class Point:
    """Numbers that were told at one moment."""

    name: str
    """The step of the plan that told them."""
    attempt: str
    time: str
    """ISO 8601, UTC."""
    at: int
    """Their `step`, or where none was told the latest one before, at first 0."""
    values: Mapping[str, float]
    """All others, by name; what diverged is nan or infinite."""

    def to_json(self) -> dict[str, Json]:
        """Return the object that `marin metrics --json` shows; what is no finite number is a string, as in events."""
        told = {name: value if math.isfinite(value) else str(value) for name, value in self.values.items()}
        return {"time": self.time, "attempt": self.attempt, "step": self.at, "values": told}


class MetricReader:
    """Reads a run's points as they appear."""

    def __init__(self, store_url: str, run: str, *, warn: Callable[[str], object]) -> None:
        self._reader = EventReader(store_url, run, warn=warn)
        self._at: dict[str, int] = {}

    def poll(self, name: str | None = None) -> list[Point]:
        """Return the points that are new since the last call, by time; only those of one step of the plan if named."""
        told = (self._point(event) for event in self._reader.poll() if _is_told(event))
        return [point for point in told if point.values and name in (None, point.name)]

    def _point(self, event: Event) -> Point:
        name, values = str(event["name"]), _numbers(event["values"])
        at = values.pop(COUNTED, None)
        if at is not None and math.isfinite(at):
            self._at[name] = int(at)
        attempt, time = str(event.get("attempt", "")), str(event.get("time", ""))
        return Point(name, attempt, time, self._at.get(name, 0), values)


def standing_points(points: Sequence[Point]) -> list[Point]:
    """Return the points without those that a restart has overtaken: each step of a training once, as it counted."""
    kept: list[Point] = []
    earliest: dict[str, int] = {}
    for point in reversed(points):
        if point.at <= earliest.get(point.name, point.at):
            kept.append(point)
            earliest[point.name] = point.at
    return kept[::-1]


def by_name(points: Iterable[Point]) -> dict[str, list[Point]]:
    """Return points by the step of the plan that told them, in the order of its first."""
    found: dict[str, list[Point]] = {}
    for point in points:
        found.setdefault(point.name, []).append(point)
    return found


def _is_told(event: Event) -> bool:
    return event.get("kind") == "metric" and event.get("rank", 0) == 0 and {"name", "values"} <= event.keys()


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:  # Any: JSON, where nan and infinity are words
    found: dict[str, float] = {}
    for name, value in values.items():
        if isinstance(value, int | float):
            found[name] = value
        elif value in ("nan", "inf", "-inf"):
            found[name] = float(value)
    return found
