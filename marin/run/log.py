"""The log of an attempt or a rank: everything printed, kept in the store while it is written.

On a local store the file grows in place. Object stores cannot append: there a local file is copied up every few
seconds and at the end; a copy that the storage refuses costs the log, never the work. A worker redirects its file
descriptors, so that what libraries print in C is caught; a run in the user's own process only copies, so that the
terminal and a debugger keep working.
"""

import contextlib
import io
import logging
import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TextIO

from marin import fs
from marin.base.errors import StoreError

logger = logging.getLogger(__name__)

MIRROR_SECONDS = 5.0


class AttemptLog:
    """A text file at a URL that grows while it is written."""

    def __init__(self, url: str) -> None:
        self.url = url
        local = fs.local_path(url)
        self._mirrored = local is None
        self._path = local or Path(tempfile.mkstemp(prefix="marin-", suffix=".log")[1])
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self.file: IO[str] = self._path.open("a", buffering=1, encoding="utf-8", errors="replace")
        self._copied = 0
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._mirror, name="marin-log", daemon=True)
        if self._mirrored:
            self._thread.start()

    def write(self, text: str) -> None:
        """Append text."""
        self.file.write(text)
        self.file.flush()

    def close(self) -> None:
        """Write what is left; the log is then complete in the store."""
        self.file.close()
        if self._mirrored:
            self._closing.set()
            self._thread.join()
            if self._copy():
                self._path.unlink()
            else:
                logger.warning("the log is kept on this machine, in %s", self._path)

    def _mirror(self) -> None:
        while not self._closing.wait(MIRROR_SECONDS):
            self._copy()

    def _copy(self) -> bool:
        """Whether all that was written is in the store now."""
        data = self._path.read_bytes()
        if len(data) != self._copied:
            try:
                fs.replace(self.url, data)
            except StoreError as error:
                logger.warning("the log could not be copied to the store (%s)", error)
                return False
            self._copied = len(data)
        return True


@contextlib.contextmanager
def redirected(url: str) -> Iterator[AttemptLog]:
    """Send this process's standard output and error, also of C code, to the log; for worker processes."""
    log = AttemptLog(url)
    sys.stdout.flush()
    sys.stderr.flush()
    saved = os.dup(1), os.dup(2)
    os.dup2(log.file.fileno(), 1)
    os.dup2(log.file.fileno(), 2)
    try:
        yield log
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for copy, descriptor in zip(saved, (1, 2), strict=True):
            os.dup2(copy, descriptor)
            os.close(copy)
        log.close()


@contextlib.contextmanager
def copied(url: str) -> Iterator[AttemptLog]:
    """Copy what this process prints to the log too; for attempts in the user's own process."""
    log = AttemptLog(url)
    with contextlib.redirect_stdout(_Tee(sys.stdout, log)), contextlib.redirect_stderr(_Tee(sys.stderr, log)):
        try:
            yield log
        finally:
            log.close()


class _Tee(io.TextIOBase):
    """Writes to a terminal and to a log; asks the terminal everything else."""

    def __init__(self, terminal: TextIO, log: AttemptLog) -> None:
        self._terminal = terminal
        self._log = log

    def write(self, text: str) -> int:
        self._log.write(text)
        return self._terminal.write(text)

    def flush(self) -> None:
        self._terminal.flush()

    def isatty(self) -> bool:
        return self._terminal.isatty()

    def fileno(self) -> int:
        return self._terminal.fileno()
