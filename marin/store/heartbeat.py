"""Heartbeat: one record a run that changes while the run lives; waiters watch it.

The thread survives any storage error. A run that could not beat for a minute is fenced: it must stop its own work
before another may take over, which happens after 90 s.
"""

import logging
import threading
import time
from collections.abc import Callable

from marin import fs
from marin.base.errors import StoreError
from marin.store import layout, records
from marin.store.process import this_process
from marin.store.store import Store

log = logging.getLogger(__name__)

INTERVAL_SECONDS = 20.0
FENCE_SECONDS = 60.0


class Heartbeat:
    """Beats from `start` to `stop` in a thread of its own."""

    def __init__(
        self,
        store: Store,
        run: str,
        *,
        interval: float = INTERVAL_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        folder = layout.run_folder(store.url, run)
        self._url, self._record = fs.join(folder, "heartbeat.json"), fs.join(folder, "run.json")
        self._has_record = False
        self._interval = interval
        self._clock = clock
        self._beats = 0
        self._last = clock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat_on, name="heartbeat", daemon=True)

    @property
    def fenced(self) -> bool:
        """Whether the store could not be reached for so long that others may soon take over."""
        return self._clock() - self._last > FENCE_SECONDS

    def start(self) -> None:
        """Beat once, raising what the store says, then go on in the background."""
        self.beat()
        self._thread.start()

    def beat(self) -> None:
        """Beat once, now; raises what the store says, and StoreError where the run's own record has gone."""
        began = self._clock()  # not the time after: waiters may have seen this beat long before the call returned
        if fs.exists(self._record):
            self._has_record = True
        elif self._has_record:  # a beat would make a store anew where there is none any more
            raise StoreError(
                "the record of this run is gone: was the store moved or deleted?",
                where=self._record,
                hint="put it back within a minute, or run the same command again where the store is now",
            )
        self._beats += 1
        fs.replace(self._url, records.encode("heartbeat", {"beat": self._beats, "process": this_process()}))
        self._last = began

    def stop(self) -> None:
        """Stop beating; a thread that hangs in a storage call is left behind."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    def _beat_on(self) -> None:
        while not self._ended.wait(self._interval):
            try:
                self.beat()
            except (StoreError, OSError) as error:
                log.warning("the heartbeat could not be written (%s); trying again", error)
