"""What workers wrote: the log files of a run's attempts, and what of them is new since the last look.

Invariant: nothing is shown twice and nothing is left out, whether a log grows in place (a local store) or is replaced
by a longer one (an object store).
"""

import codecs
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from marin import fs
from marin.fs.aged import list_aged_here
from marin.store import Event, EventReader, Store

_RANK = re.compile(r"rank-(\d+)\b.*\.log")
_STEP_BYTES = 1 << 20


class Chunk(NamedTuple):
    """Text that a worker wrote."""

    name: str
    """Of the step in its plan."""
    attempt: str
    file: str
    text: str


@dataclass(frozen=True)
class Wanted:
    """Which logs: None takes all."""

    step: str | None = None
    attempt: str | None = None
    """An attempt's id, or its number within its step: `2`."""
    rank: int | None = None

    def takes_attempt(self, name: str, attempt: str) -> bool:
        """Whether an attempt's logs are wanted."""
        number = attempt.rpartition("-")[2]
        return self.step in (None, name) and self.attempt in (None, attempt, number)

    def takes_file(self, file: str) -> bool:
        """Whether a file of an attempt's folder is a log that is wanted."""
        if not file.endswith((".log", ".txt")):
            return False
        rank = _RANK.fullmatch(file)
        return self.rank is None or (rank is not None and int(rank[1]) == self.rank)


@dataclass
class _Read:
    """How far one file has been read."""

    bytes: int = 0
    decoder: codecs.IncrementalDecoder = field(
        default_factory=lambda: codecs.getincrementaldecoder("utf-8")(errors="replace")
    )


class LogReader:
    """Reads the logs of a run as they grow."""

    def __init__(self, store: Store, run: str, wanted: Wanted) -> None:
        self._store = store
        self._events = EventReader(store.url, run)
        self._wanted = wanted
        self._attempts: dict[str, tuple[str, str]] = {}
        self._read: dict[str, _Read] = {}

    def poll(self) -> Iterator[Chunk]:
        """Yield what is new since the last call, attempts in the order in which they began."""
        for event in self._events.poll():
            self._note(event)
        for attempt, (name, folder) in self._attempts.items():
            for file in list_aged_here(folder):
                if self._wanted.takes_file(file.path):
                    yield from self._new(name, attempt, file.path, file.url, file.size)

    def _note(self, event: Event) -> None:
        name, *key = (str(event.get(field) or "") for field in ("name", "step", "fingerprint", "attempt"))
        attempt = key[2]
        if name and all(key) and attempt not in self._attempts and self._wanted.takes_attempt(name, attempt):
            self._attempts[attempt] = (name, self._store.attempt_folder(*key))

    def _new(self, name: str, attempt: str, file: str, url: str, size: int) -> Iterator[Chunk]:
        read = self._read.setdefault(url, _Read())
        while read.bytes < size:
            try:
                data = fs.read_range(url, read.bytes, min(_STEP_BYTES, size - read.bytes))
            except fs.NotFound:
                return
            if not data:
                return
            read.bytes += len(data)
            if text := read.decoder.decode(data):
                yield Chunk(name, attempt, file, text)
