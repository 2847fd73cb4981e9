"""Runs as a collector of garbage sees them: which live, when they began and were last seen, and what they touched.

Invariant: times are the store's own. A run that says nothing of its end counts as alive until its process is certainly
gone or it has given no sign of life for a long time; what cannot be read never makes a run look dead.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from marin import fs
from marin.fs.aged import Aged, list_aged
from marin.store import layout, records
from marin.store.process import certainly_gone

Key = tuple[str, str]
"""Step and fingerprint."""

SILENT_SECONDS = 900.0
"""A run that may be alive is so until it has been silent for that long: ten times what its leases live."""


@dataclass
class RunSeen:
    """One run's folder."""

    id: str
    files: list[Aged]
    over: bool
    """Its record says how it ended, or its process is certainly gone."""
    touched: set[Key] = field(default_factory=set)
    """Results that it made, was given, or works on, as far as its record and its events say."""

    @property
    def began(self) -> float:
        """When the oldest of its files was written; 0.0 if that is not known."""
        return min((file.modified for file in self.files), default=0.0)

    @property
    def last_seen(self) -> float:
        """When the newest of its files was written."""
        return max((file.modified for file in self.files), default=0.0)

    def silent_for(self, now: float) -> float:
        """Return the seconds since its last sign of life; none when the store tells no times."""
        return now - self.last_seen if self.last_seen else 0.0


def read_runs(root: str) -> dict[str, RunSeen]:
    """Return all runs by id; what they touched is known only as far as their records say."""
    folders: dict[str, list[Aged]] = {}
    for file in list_aged(layout.runs_folder(root)):
        run, below, _ = file.path.partition("/")
        if below:
            folders.setdefault(run, []).append(file)
    urls = [fs.join(layout.run_folder(root, run), name) for run in folders for name in ("run.json", "heartbeat.json")]
    stored = fs.read_many(urls)
    found = {}
    for run, files in folders.items():
        record = _decoded(stored, fs.join(layout.run_folder(root, run), "run.json"), "run")
        beat = _decoded(stored, fs.join(layout.run_folder(root, run), "heartbeat.json"), "heartbeat")
        process = beat.get("process")
        over = record.get("state", "running") != "running" or (isinstance(process, dict) and certainly_gone(process))
        steps = record.get("steps")
        found[run] = RunSeen(run, files, over, _keys(steps if isinstance(steps, list) else []))
    return found


def read_touched(root: str, runs: Iterable[RunSeen]) -> None:
    """Add what the drivers' events of these runs say that they touched."""
    urls = {
        fs.join(layout.runs_folder(root), file.path): run
        for run in runs
        for file in run.files
        if file.path.rsplit("/", 1)[-1].startswith("driver-") and file.path.endswith(".jsonl")
    }
    for url, data in fs.read_many(urls).items():
        urls[url].touched |= _keys(_events(data))


def _events(data: bytes) -> list[Any]:  # Any: JSON
    events = []
    for line in data.splitlines():
        try:
            events.append(json.loads(line))
        except (ValueError, RecursionError):
            continue  # torn: the reader of events says so, and the rest counts
    return events


def _keys(items: Sequence[Any]) -> set[Key]:  # Any: JSON
    return {
        (str(item["step"]), str(item["fingerprint"]))
        for item in items
        if isinstance(item, dict) and item.get("fingerprint") and item.get("step")
    }


def _decoded(stored: dict[str, bytes], url: str, kind: str) -> dict[str, Any]:  # Any: JSON
    return (records.decode(stored[url], kind, where=url) if url in stored else None) or {}
