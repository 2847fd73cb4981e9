"""Stop requests: anyone who sees the store can ask a run to stop; the run's own processes watch for it.

Invariant: a request is one create-only record of its run, so asking twice is asking once, and a run with a new id,
which continues the work, knows nothing of it. Whoever watches never waits: it looks at most every few seconds.
"""

import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime

from marin import fs
from marin.base.errors import StoreError
from marin.store import layout, records

log = logging.getLogger(__name__)

KIND = "stop"
LOOK_SECONDS = 2.0


def ask_to_stop(store_url: str, run: str, *, user: str) -> bool:
    """Ask a run to stop at its next checkpoints; return whether this was the first request."""
    asked = datetime.now(UTC).isoformat(timespec="seconds")
    return fs.create(_url(store_url, run), records.encode(KIND, {"run": run, "user": user, "asked": asked}))


class StopWatch:
    """Knows whether its run was asked to stop, by a look at the store every few seconds at most."""

    def __init__(
        self,
        store_url: str,
        run: str,
        *,
        interval: float = LOOK_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._url = _url(store_url, run)
        self._interval = interval
        self._clock = clock
        self._looked: float | None = None
        self._asked = False

    @property
    def asked(self) -> bool:
        """Whether somebody asked; once true it stays so. A store that does not answer has not asked."""
        now = self._clock()
        if self._asked or (self._looked is not None and now - self._looked < self._interval):
            return self._asked
        self._looked = now
        try:
            self._asked = fs.exists(self._url)
        except StoreError as error:
            log.warning("whether the run was asked to stop is not known (%s)", error)
        return self._asked


def _url(store_url: str, run: str) -> str:
    return fs.join(layout.run_folder(store_url, run), "stop.json")
