"""Events: append-only JSON lines of a run, written by whoever does the work, read by every screen.

Object stores cannot append, so each writer flushes numbered objects, `events/<writer>-<number>.jsonl`. Losing an
event never loses work: the store's manifests are the truth.
"""

import json
import logging
import math
import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from marin import fs
from marin.base.errors import StoreError
from marin.base.json import dumps
from marin.store import layout

log = logging.getLogger(__name__)

FLUSH_SECONDS = 1.0
SOON_SECONDS = 0.05

_TEXTS = (
    *("time", "kind", "step", "name", "fingerprint", "attempt"),
    *("state", "detail", "unit", "line", "shard", "host", "since"),
)
_COUNTS = ("reused", "computed", "rank")
_NUMBERS = ("done", "total", "usual")

Event = dict[str, Any]  # Any: JSON


class EventWriter:
    """Buffers events and flushes them every `interval` seconds from a thread of its own."""

    def __init__(self, store_url: str, run: str, writer: str, *, interval: float = FLUSH_SECONDS) -> None:
        self._folder = fs.join(layout.run_folder(store_url, run), "events")
        self._writer = writer
        self._interval = interval
        self._lines: list[str] = []
        self._number = 0
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def emit(self, kind: str, **fields: Any) -> None:  # Any: JSON
        """Add an event; it is stored within the interval."""
        event = {"time": datetime.now(UTC).isoformat(timespec="microseconds"), "kind": kind, **fields}
        with self._lock:
            self._lines.append(_line(event))
            if self._thread is None:
                self._thread = threading.Thread(target=self._flush_on, name="events", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Flush what is left and stop."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(timeout=30)
        self.flush()

    def _flush_on(self) -> None:
        # Soon, so that where a worker runs is known before it can die; not at once: a short one needs one object only.
        self._ended.wait(min(SOON_SECONDS, self._interval))
        self.flush()
        while not self._ended.wait(self._interval):
            self.flush()

    def flush(self) -> None:
        """Store what is there now, such as where a worker runs, before it can die."""
        with self._lock:
            lines, self._lines = self._lines, []
            if not lines:
                return
            self._number += 1
            url = fs.join(self._folder, _file_name(self._writer, self._number))
        try:
            fs.replace(url, "".join(lines).encode("utf-8", "replace"))
        except (StoreError, OSError) as error:
            log.warning("events could not be stored (%s); trying again", error)
            with self._lock:
                self._lines = lines + self._lines


def begun(store_url: str, run: str, writers: Sequence[str]) -> set[str]:
    """Return those writers that have stored an event."""
    folder = fs.join(layout.run_folder(store_url, run), "events")
    first = {fs.join(folder, _file_name(writer, 1)): writer for writer in writers}
    return {first[url] for url in fs.exists_many(first)}


def any_begun_under(store_url: str, run: str, writer: str) -> bool:
    """Whether a writer that is named after `writer`, with something behind its name, has stored an event."""
    names = fs.list_folder(fs.join(layout.run_folder(store_url, run), "events"))
    return any(name.startswith(f"{writer}-") and name.count("-") > writer.count("-") + 1 for name in names)


class EventReader:
    """Reads a run's events as they appear."""

    def __init__(self, store_url: str, run: str, *, warn: Callable[[str], object] = log.warning) -> None:
        self._folder = fs.join(layout.run_folder(store_url, run), "events")
        self._read: set[str] = set()
        self._warn = warn
        self.damaged: dict[str, int] = {}
        """Lines that were passed over, by file."""

    def poll(self) -> list[Event]:
        """Return the events that are new since the last call, by time."""
        names = [name for name in self._list() if name.endswith(".jsonl") and name[0] != "." and name not in self._read]
        if not names:
            return []
        stored = fs.read_many(fs.join(self._folder, name) for name in names)
        self._read.update(names)  # not before: a poll that the storage refused is asked again
        events = [event for url, data in stored.items() for event in self._parsed(data, url.rpartition("/")[2])]
        return sorted(events, key=lambda event: str(event.get("time", "")))

    def _list(self) -> list[str]:
        try:
            return fs.list_folder(self._folder)
        except StoreError as error:
            if not isinstance(error.__cause__, NotADirectoryError):
                raise
            raise StoreError(
                "the events of this run cannot be read: their folder is a file",
                where=self._folder,
                hint="move that file away; what the run has finished is kept",
            ) from error

    def _parsed(self, data: bytes, name: str) -> list[Event]:
        lines = [_event(line) for line in data.splitlines()]
        events = [event for event in lines if event is not None]
        if bad := len(lines) - len(events):
            self.damaged[name] = bad
            self._warn(f"{bad} line{'s' if bad > 1 else ''} of {name}: torn, or no event; passed over")
        return events


def _file_name(writer: str, number: int) -> str:
    return f"{writer}-{number:06d}.jsonl"


def _line(event: Event) -> str:
    try:
        return dumps(event) + "\n"
    except ValueError:  # nan and infinity are no JSON; a diverged loss must still be seen
        return dumps(_spelled_out(event)) + "\n"


def _spelled_out(value: Any) -> Any:  # Any: JSON with nan
    if isinstance(value, dict):
        return {key: _spelled_out(member) for key, member in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _event(line: bytes) -> Event | None:
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) and _is_sound(event) else None


def _is_sound(event: Event) -> bool:
    """Whether screens can show each field and no name leads out of the store: lines have no checksum."""
    named = all(isinstance(event.get(name, ""), str) for name in _TEXTS)
    counted = all(isinstance(event.get(name, 0), int) for name in _COUNTS)
    measured = all(_is_number(event.get(name, 0)) for name in _NUMBERS)
    inside = all("/" not in str(event.get(name, "")) for name in ("step", "fingerprint", "attempt"))
    values = event.get("values", {})
    metrics = isinstance(values, dict) and all(isinstance(value, str | int | float) for value in values.values())
    return named and counted and measured and inside and metrics


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and abs(value) < 2**63  # neither infinite nor nan
