"""Whether a run that says it is running still is: a killed driver can write nothing any more.

Certain at once on the machine where it ran. From elsewhere its heartbeat tells: one that has stood still for longer
than leases live belongs to a driver that is gone, or that has given up because it could not reach the store.
"""

import time
from collections.abc import Callable
from typing import Any

from marin import fs
from marin.fs.aged import list_aged_here
from marin.store import Store, layout, records
from marin.store.process import certainly_gone

SILENT_SECONDS = 120.0
"""A heartbeat comes every 20 s, and another run takes over after 90."""
SKEW_SECONDS = 180.0
"""How far the clocks of a store and of this machine may be apart."""

Record = dict[str, Any]  # Any: JSON


def run_state(store: Store, run: str, record: Record | None, *, now: float | None = None) -> str:
    """Return the state in a run's record, `waiting` before it has begun, `lost` when its driver is gone."""
    state = _state(record)
    if state != "running":
        return state
    beat = _heartbeat(store, run)
    if beat is not None:
        known = records.decode(beat, "heartbeat", where=_heartbeat_url(store, run))
        if known is not None and certainly_gone(known["process"]):
            return "lost"
    files = list_aged_here(layout.run_folder(store.url, run))
    seen = max((file.modified for file in files if file.path in ("heartbeat.json", "run.json")), default=0.0)
    silent = (time.time() if now is None else now) - seen
    return "lost" if seen and silent > SILENT_SECONDS + SKEW_SECONDS else state


class Pulse:
    """Watches one run for as long as it lives: no clock but this process's own is compared."""

    def __init__(self, store: Store, run: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._run = run
        self._clock = clock
        self._beat: bytes | None = None
        self._process: Record = {}
        self._since = clock()

    def state(self, record: Record | None) -> str:
        """Return what `run_state` does; `lost` as soon as the heartbeat has stood still for two minutes."""
        state = _state(record)
        if state != "running":
            self._since = self._clock()
            return state
        beat, now = _heartbeat(self._store, self._run), self._clock()
        if beat != self._beat:
            self._beat, self._since = beat, now
            known = records.decode(beat, "heartbeat", where=_heartbeat_url(self._store, self._run)) if beat else None
            self._process = known["process"] if known else {}
        gone = bool(beat) and certainly_gone(self._process)
        return "lost" if gone or now - self._since > SILENT_SECONDS else state


def _state(record: Record | None) -> str:
    return "waiting" if record is None else str(record.get("state", "running"))


def _heartbeat(store: Store, run: str) -> bytes | None:
    try:
        return fs.read(_heartbeat_url(store, run))
    except fs.NotFound:
        return None


def _heartbeat_url(store: Store, run: str) -> str:
    return fs.join(layout.run_folder(store.url, run), "heartbeat.json")
