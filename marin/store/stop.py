"""Stop requests: anyone who sees the store can ask a run to stop; the run's own processes watch for it.

Invariant: a request is one create-only record of its run, so asking twice is asking once, and a run with a new id,
which continues the work, knows nothing of it. Whoever watches never waits: it looks at most every few seconds.
"""

import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from marin import fs
from marin.base.errors import StoreError
from marin.store import layout, records

log = logging.getLogger(__name__)

KIND = "stop"
LOOK_SECONDS = 2.0


def ask_to_stop(store_url: str, run: str, *, user: str) -> bool:
    """Ask a run to stop at its next checkpoints; return whether this was the first request."""
    return fs.create(_url(store_url, run), _record(run, user))


def ask_to_stop_now(store_url: str, run: str, *, user: str) -> bool:
    """Ask a run's driver to wait for nothing; return whether this was the first such request."""
    ask_to_stop(store_url, run, user=user)
    return fs.create(_url(store_url, run, "stop-now.json"), _record(run, user))


def read_stop(store_url: str, run: str) -> dict[str, Any] | None:  # Any: JSON
    """Return who asked a run to stop and when (`user`, `asked`); None while nobody has."""
    return records.load(_url(store_url, run), KIND)


def read_stop_now(store_url: str, run: str) -> dict[str, Any] | None:  # Any: JSON
    """Return who asked a run to stop at once and when; None while nobody has."""
    return records.load(_url(store_url, run, "stop-now.json"), KIND)


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
        self._now_url = _url(store_url, run, "stop-now.json")
        self._interval = interval
        self._clock = clock
        self._looked: float | None = None
        self._asked = False
        self._looked_for_now: float | None = None
        self._now = False

    @property
    def asked(self) -> bool:
        """Whether somebody asked; once true it stays so. A store that does not answer has not asked."""
        if not self._asked and self._may_look(self._looked):
            self._looked = self._clock()
            self._asked = self._exists(self._url)
        return self._asked

    @property
    def now(self) -> bool:
        """Whether somebody asked for a stop at once; looked for only where a stop was asked for."""
        if self._asked and not self._now and self._may_look(self._looked_for_now):
            self._looked_for_now = self._clock()
            self._now = self._exists(self._now_url)
        return self._now

    def _may_look(self, looked: float | None) -> bool:
        return looked is None or self._clock() - looked >= self._interval

    def _exists(self, url: str) -> bool:
        try:
            return fs.exists(url)
        except StoreError as error:
            log.warning("whether the run was asked to stop is not known (%s)", error)
            return False


def _record(run: str, user: str) -> bytes:
    asked = datetime.now(UTC).isoformat(timespec="seconds")
    return records.encode(KIND, {"run": run, "user": user, "asked": asked})


def _url(store_url: str, run: str, name: str = "stop.json") -> str:
    return fs.join(layout.run_folder(store_url, run), name)
