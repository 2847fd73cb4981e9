"""Clocks that only a test moves: a monotonic one a driver, each with its own origin and pace.

Invariant: a clock never goes back. Clocks of two drivers share nothing but the test that advances them, so code that
compares times of two hosts is caught: their origins lie as far apart as the test says.
"""

import threading
from collections.abc import Callable


class Clock:
    """A monotonic clock that stands still until `advance`; give it wherever `time.monotonic` would go."""

    def __init__(self, now: float = 0.0, *, pace: float = 1.0) -> None:
        self._now = now
        self._pace = pace
        self._lock = threading.Lock()

    def __call__(self) -> float:
        """Return the seconds that this clock shows."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Let `seconds` of true time pass; a clock of pace 1.01 then shows one per cent more."""
        assert seconds >= 0, "a monotonic clock never goes back"
        with self._lock:
            self._now += seconds * self._pace

    @property
    def sleep(self) -> Callable[[float], None]:
        """What takes the place of `time.sleep`: time passes, and nobody waits."""
        return self.advance


class Clocks:
    """The clocks of several drivers under one true time."""

    def __init__(self) -> None:
        self.true = Clock()
        self._drivers: list[Clock] = []

    def driver(self, *, skew: float = 0.0, pace: float = 1.0) -> Clock:
        """Return a new driver's clock, `skew` seconds away from true time and running at its own pace."""
        clock = Clock(self.true() + skew, pace=pace)
        self._drivers.append(clock)
        return clock

    def advance(self, seconds: float) -> None:
        """Let true time pass, for all."""
        for clock in (self.true, *self._drivers):
            clock.advance(seconds)
