"""Events of several writers in the order in which things happened, as far as a short wait brings that about.

Each writer stores its events every second, so that a child's first word may come before its parent's last.
"""

import time
from collections.abc import Callable, Sequence

from marin.view.progress import Event

HOLD_SECONDS = 1.5
"""A little more than a writer takes to store what it has said."""


class InOrder:
    """Holds each event back for a moment, and gives those before it first."""

    def __init__(self, hold: float = HOLD_SECONDS, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._hold = hold
        self._clock = clock
        self._held: list[tuple[str, float, Event]] = []

    def take(self, events: Sequence[Event]) -> list[Event]:
        """Take in what has come; return what has been held long enough, and all that happened before it."""
        now = self._clock()
        self._held += [(str(event.get("time", "")), now, event) for event in events]
        due = max((moment for moment, came, _ in self._held if now - came >= self._hold), default=None)
        return [] if due is None else self._release(due)

    def rest(self) -> list[Event]:
        """Return all that is held, in order: nothing more will come."""
        return self._release(max((moment for moment, _, _ in self._held), default=""))

    def _release(self, until: str) -> list[Event]:
        given = sorted((each for each in self._held if each[0] <= until), key=lambda each: each[0])
        self._held = [each for each in self._held if each[0] > until]
        return [event for _, _, event in given]
