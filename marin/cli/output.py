"""Standard output at its end: a reader that has left, a disk that is full. Both are known for sure, never guessed.

A reader that leaves (`| head`) ends a verb without a word and with 141, as a shell shows a tool that SIGPIPE ended.
"""

import contextlib
import os
import select
import sys
import traceback
from collections.abc import Iterator
from typing import TextIO

from marin.base.errors import MarinError, StoreError

READER_GONE = 141
"""128 + SIGPIPE."""
_WRITERS = (__name__, "click.utils", "rich.console")
"""Where all that is said is written: an error of the system that comes from there is one of the output."""


class BrokenPipe(Exception):
    """A pipe or socket that nobody reads; under a name of its own, as click ends the process at the error itself."""

    def __init__(self, cause: BrokenPipeError) -> None:
        super().__init__(str(cause))
        self.cause = cause


@contextlib.contextmanager
def broken_pipes() -> Iterator[None]:
    """Raise BrokenPipe for a broken pipe."""
    try:
        yield
    except BrokenPipeError as error:
        raise BrokenPipe(error) from error


def flush() -> None:
    """Write what is still buffered; OSError when it cannot be written."""
    if sys.stdout is not None:
        sys.stdout.flush()


def reader_is_gone() -> bool:
    """Whether nobody reads standard output or error any more; both are quiet from then on."""
    gone = [stream for stream in (sys.stdout, sys.stderr) if stream is not None and _has_no_reader(stream)]
    for stream in gone:
        _silence(stream)
    return bool(gone)


def refused(error: OSError) -> MarinError | None:
    """Return the error for output that cannot be written, such as to a full disk; None if it was something else."""
    frames = traceback.extract_tb(error.__traceback__)
    writers = [sys.modules[name].__file__ for name in _WRITERS if name in sys.modules]
    if error.filename is not None or not frames or frames[-1].filename not in writers:
        return None
    if sys.stdout is not None:
        _silence(sys.stdout)
    what = (error.strerror or str(error)).lower()
    hint = "free space where the output goes, or send it elsewhere"
    return StoreError(f"cannot write the output: {what}", hint=hint)


def _has_no_reader(stream: TextIO) -> bool:
    with contextlib.suppress(OSError, ValueError):  # no file, or a closed one
        looked = select.poll()
        looked.register(stream.fileno(), 0)  # errors are told in any case
        return any(event & select.POLLERR for _, event in looked.poll(0))
    return False


def _silence(stream: TextIO) -> None:
    """Let what is buffered, and all that follows, go nowhere: the interpreter writes once more as it ends."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
        stream.flush()
