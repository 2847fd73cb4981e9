"""A stop as the engine sees it: who asked, and how long it waits for what runs. No clock of its own, no thread.

Invariant: a request made in this process (Ctrl-C, SIGTERM) is written to the store, where gangs and maps watch for it,
so that both ways of asking are one. Gangs and maps get time to keep what they have; a plain step keeps nothing.
"""

import logging
import threading
import time
from collections.abc import Callable

from marin.base.errors import StoreError
from marin.run.placement import Kind
from marin.store import StopWatch, ask_to_stop

log = logging.getLogger(__name__)

GRACE_SECONDS = 120.0
PLAIN_SECONDS = 10.0


class Stopping:
    """Whether a run is to stop, and since when."""

    def __init__(
        self,
        store_url: str,
        run: str,
        *,
        user: str = "unknown",
        grace: float = GRACE_SECONDS,
        interrupted: threading.Event | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store_url = store_url
        self._run = run
        self._user = user
        self._grace = grace
        self._interrupted = interrupted or threading.Event()
        self._clock = clock
        self._watch = StopWatch(store_url, run, clock=clock)
        self._since: float | None = None
        self._written = False

    @property
    def asked(self) -> bool:
        """Whether the run starts nothing any more."""
        if self._since is None and (self._interrupted.is_set() or self._watch.asked):
            self._since = self._clock()
        if self._since is not None and not self._written:
            self._tell()
        return self._since is not None

    def ask(self) -> None:
        """Ask from within: an attempt has ended because it was told to."""
        self._interrupted.set()

    def is_over(self, kind: Kind) -> bool:
        """Whether an attempt of this kind has had its time."""
        if self._since is None:
            return False
        patience = min(PLAIN_SECONDS, self._grace) if kind == "plain" else self._grace
        return self.now or self._clock() - self._since >= patience

    @property
    def now(self) -> bool:
        """Whether somebody who sees the store wants no more waiting."""
        return self._watch.asked and self._watch.now

    def _tell(self) -> None:
        try:
            ask_to_stop(self._store_url, self._run, user=self._user)
            self._written = True
        except StoreError as error:
            log.warning("the workers could not be told to stop yet (%s)", error)
