"""Attempts that were handed to the cluster and have not begun: which to ask about, and what to say of them.

The same is said of a map none of whose shards has begun, by the attempt that maps.

Invariant: an attempt is spoken of only after `QUIET_SECONDS`, not more often than every `SAY_SECONDS` unless what it
waits for is of another kind, and never once it has begun. It knows no Ray: the backend brings what is free.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from marin.base.units import format_size
from marin.run.placement import Bundle, describe, inventory

QUIET_SECONDS = 5.0
LOOK_SECONDS = 5.0
SAY_SECONDS = 30.0
START_SECONDS = 20.0
"""How long a worker process may take to start before that is worth a word."""
MOST_ASKED = 64
"""Attempts that one look asks about: each costs a question to the store."""
PLURALS = {"CPU": "CPUs", "GPU": "GPUs"}


@dataclass(frozen=True, slots=True)
class Room:
    """What a cluster has at one moment."""

    free: Bundle
    """Over all nodes."""
    nodes: Sequence[Bundle]
    """Each with all it has, free or not."""
    grows: bool = False
    """Whether an autoscaler is on."""


@dataclass(slots=True)
class _Attempt:
    bundle: Bundle
    since: float
    looked: float = float("-inf")
    said: float = float("-inf")
    words: str = ""


@dataclass
class Pending:
    """The attempts in flight that have not been seen at work."""

    clock: Callable[[], float] = time.monotonic
    _attempts: dict[str, _Attempt] = field(default_factory=dict)

    def add(self, attempt: str, bundle: Bundle) -> None:
        """Note an attempt that was just submitted."""
        self._attempts[attempt] = _Attempt(bundle, self.clock())

    def forget(self, attempts: Iterable[str]) -> None:
        """Leave out attempts that have begun or ended."""
        for attempt in attempts:
            self._attempts.pop(attempt, None)

    def due(self) -> list[str]:
        """Return the attempts to ask about now, oldest first."""
        now = self.clock()
        found: list[str] = []
        for name, attempt in self._attempts.items():  # in the order of submission
            if now - attempt.since < QUIET_SECONDS or len(found) == MOST_ASKED:
                break
            if now - attempt.looked >= LOOK_SECONDS:
                attempt.looked = now
                found.append(name)
        return found

    def say(self, asked: Iterable[str], room: Room) -> dict[str, str]:
        """Return what those of the attempts wait for that have not begun, as far as it is to be said now."""
        now = self.clock()
        found = {}
        for name in asked:
            attempt = self._attempts.get(name)
            words = why_waiting(attempt.bundle, room, now - attempt.since) if attempt is not None else ""
            if attempt is None or not words or words == attempt.words:
                continue
            if now - attempt.said >= SAY_SECONDS or _kind(words) != _kind(attempt.words):
                attempt.said, attempt.words = now, words
                found[name] = words
        return found


@dataclass
class FirstShard:
    """A map until the first of its shards has begun: `look` says what they wait for, once it is long."""

    emit: Callable[..., None]
    has_begun: Callable[[], bool]
    why: Callable[[float], str]
    """What the shards wait for after some seconds."""
    clock: Callable[[], float] = time.monotonic
    _since: float | None = None
    _looked: float = 0
    _words: str = ""
    _begun: bool = False

    def look(self) -> None:
        """Say what the shards wait for, if that is to be said now."""
        now = self.clock()
        self._since = now if self._since is None else self._since
        if self._begun or now - self._since < QUIET_SECONDS or now - self._looked < LOOK_SECONDS:
            return
        self._looked = now
        if self.has_begun():
            self.begin()
        elif (words := self.why(now - self._since)) and _kind(words) != _kind(self._words):
            self._words = words
            self.emit("state", state="waiting", detail=f"shards are {words}")

    def begin(self) -> None:
        """Note that a shard has begun; take back what was said."""
        if self._words and not self._begun:
            self.emit("state", state="running")
        self._begun = True


def why_waiting(bundle: Bundle, room: Room, seconds: float) -> str:
    """Return what a bundle waits for after some seconds; empty while it may be about to start."""
    wanted = describe(bundle)
    if not any(all(node.get(key, 0) >= need for key, need in bundle.items()) for node in room.nodes):
        if room.grows:
            return f"waiting for the autoscaler: {wanted} on one node; the cluster has {inventory(room.nodes)}"
        return f"waiting for {wanted}: no node has that any more; the cluster has {inventory(room.nodes)}"
    short = [key for key, need in bundle.items() if room.free.get(key, 0) < need]
    if short:
        total = {key: sum(node.get(key, 0) for node in room.nodes) for key in short}
        shown = ", ".join(_share(key, room.free.get(key, 0), total[key]) for key in short)
        return f"waiting for {wanted}: cluster has {shown}"
    if seconds < START_SECONDS:
        return ""
    if len(room.nodes) > 1 and any(bundle.values()):
        return f"waiting for {wanted} on one node: free is that on several together, or a worker process starts slowly"
    return "waiting for a worker process to start"


def _share(key: str, free: float, total: float) -> str:
    if key == "memory":
        return f"{format_size(free)} of {format_size(total)} of memory free"
    return f"{free:g} of {total:g} {PLURALS.get(key, key)} free"


def _kind(words: str) -> str:
    return words.partition(": ")[0]
