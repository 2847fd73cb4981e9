"""The time limit of an attempt: raised in the step's own thread, and enforced if that thread does not come back.

A signal handler cannot be used: raising from one inside Ray's C++ calls leaves the interpreter in a bad state (seen
as SystemError on 2.60), and it works on the main thread only. An asynchronous exception is delivered between two
bytecodes of the thread.
"""

import contextlib
import ctypes
import threading
from collections.abc import Callable, Iterator

from marin.base.errors import MarinError
from marin.base.units import format_seconds

GRACE_SECONDS = 15.0


class StepTimeout(MarinError):
    """The step ran longer than `.on(timeout=...)` allows."""


class _TimeIsUp(BaseException):
    """Passes through the user's `except Exception`."""


@contextlib.contextmanager
def time_limit(seconds: float | None, *, where: str, give_up: Callable[[StepTimeout], None]) -> Iterator[None]:
    """Raise StepTimeout in the block after `seconds`; `give_up` is called if it hangs for 15 s more."""
    if seconds is None:
        yield
        return
    error = StepTimeout(
        f"ran longer than its timeout of {format_seconds(seconds)}",
        where=where,
        hint="give it more time with .on(timeout=...); shards and checkpoints made so far are kept",
    )
    done = threading.Event()
    thread = ctypes.c_ulong(threading.get_ident())
    lock = threading.Lock()

    def watch() -> None:
        if done.wait(seconds):
            return
        with lock:
            if not done.is_set():
                ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(_TimeIsUp))
        if not done.wait(GRACE_SECONDS):
            give_up(error)

    threading.Thread(target=watch, name="marin-timeout", daemon=True).start()
    try:
        yield
    except _TimeIsUp as raised:
        raise error from raised
    finally:
        with lock:
            done.set()
            ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, None)
