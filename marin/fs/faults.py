"""What storage errors mean: absent, refused, or worth another try.

Every call to storage goes through `attempt`. Transient errors are retried with exponential backoff and jitter;
all that remains becomes a StoreError that says what to do.
"""

import errno
import random
import time
from collections.abc import Callable
from typing import TypeVar

from marin.base.errors import StoreError
from marin.fs.location import is_local

T = TypeVar("T")

TRIES = 5
_FIRST_PAUSE = 0.2  # seconds; doubles with each try
_FINAL = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError)
_HINTS = {
    errno.ENOSPC: "free space on the disk, or put the store elsewhere with --store",
    errno.EDQUOT: "free space in your quota, or put the store elsewhere with --store",
    errno.EROFS: "the file system is read-only: choose another store with --store",
    errno.EACCES: "ask for permission, or choose another store with --store",
    errno.EPERM: "ask for permission, or choose another store with --store",
    errno.ENOTDIR: "a file stands where a folder is needed: choose another path with --store",
    errno.EISDIR: "a folder stands where a file is needed: choose another path",
    errno.EEXIST: "a file stands where a folder is needed: choose another path with --store",
}


class NotFound(StoreError):
    """Nothing is stored under this URL."""

    def __init__(self, what: str, *, where: str = "", hint: str = "check the URL, or rerun what made it") -> None:
        super().__init__(what, where=where, hint=hint)


def attempt(call: Callable[[], T], url: str, *, tries: int = TRIES) -> T:
    """Return `call()`, retried while the error is transient; NotFound, FileExistsError or StoreError otherwise."""
    for number in range(1, tries + 1):
        try:
            return call()
        except FileNotFoundError as error:
            raise NotFound(f"there is no {url}", where=url) from error
        except FileExistsError:
            raise
        except OSError as error:
            if number == tries or isinstance(error, _FINAL) or (is_local(url) and error.errno != errno.EIO):
                raise refused(error, url) from error
        time.sleep(_FIRST_PAUSE * 2**number * random.random())
    raise AssertionError("unreachable")


def refused(error: OSError, url: str) -> StoreError:
    """Return the StoreError for a storage error that will not go away."""
    hint = _HINTS.get(error.errno or 0, "check that the store is reachable and that your credentials are right")
    reason = error.strerror or str(error) or type(error).__name__
    return StoreError(f"storage refused: {reason}", where=url, hint=hint)
