"""Errands: calls to a store that answers late, made beside the engine and answered to it.

Invariant: whoever gives an errand also takes its answer, in the one thread that calls `collect` or `drain`; errands
themselves share nothing. Until `open` is called, and always where it is given one thread, an errand is done at once.
"""

import logging
import queue
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")

log = logging.getLogger(__name__)


class _Answer(NamedTuple):
    """An errand that was done, and who waits for what it brings."""

    future: "Future[Any]"  # Any: each errand's own type, as `then` takes it
    then: Callable[[Any], object]


class Errands:
    """A bounded number of calls under way at once."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._answers: queue.SimpleQueue[_Answer] = queue.SimpleQueue()
        self._waiting = 0

    @property
    def waiting(self) -> int:
        """How many errands have not been answered yet."""
        return self._waiting

    def open(self, threads: int) -> None:
        """Let this many calls be under way at once from now on."""
        if threads > 1 and self._pool is None:
            self._pool = ThreadPoolExecutor(threads, thread_name_prefix="errand")

    def run(self, ask: Callable[[], T], then: Callable[[T], object]) -> None:
        """Ask, and hand the answer to `then` once it is collected; what `ask` raises is raised there."""
        if self._pool is None:
            then(ask())
            return
        self._waiting += 1
        self._pool.submit(ask).add_done_callback(lambda future: self._answers.put(_Answer(future, then)))

    def collect(self, timeout: float) -> None:
        """Wait so long for an answer, and take all that have come by then."""
        try:
            answer = self._answers.get(timeout=timeout)
            while True:
                self._waiting -= 1
                answer.then(answer.future.result())
                answer = self._answers.get_nowait()
        except queue.Empty:
            return

    def drain(self) -> None:
        """Wait for all answers and take them; an error ends nothing any more."""
        while self._waiting:
            answer = self._answers.get()
            self._waiting -= 1
            error = answer.future.exception()
            if error is None:
                answer.then(answer.future.result())
            else:
                log.warning("the store was asked and did not answer: %s", error)

    def close(self) -> None:
        """Take all answers, then end the threads."""
        self.drain()
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None
