"""What storage errors mean: absent, refused, or worth another try.

Every call to storage goes through `attempt`. Transient errors are retried with exponential backoff and jitter;
all that remains becomes a StoreError that says what to do. Somebody at a terminal hears of it soon; a worker, which
has work in hand that is lost with a failed call, goes on for a minute (fs/patience.py).
"""

import errno
import itertools
import random
import sys
import time
from collections.abc import Callable, Iterable
from typing import TypeVar

from marin.base.errors import StoreError
from marin.fs.location import is_local
from marin.fs.patience import patience

T = TypeVar("T")

TRIES = 5
_FIRST_PAUSE = 0.2  # seconds; doubles with each try
_LONGEST_PAUSE = 5.0
_ENOUGH_SECONDS = 20.0
"""No further try after so long: where nothing answers, each takes seconds by itself."""
_FINAL = (IsADirectoryError, NotADirectoryError, PermissionError)
_REMOTE_FINAL = {errno.EINVAL, errno.ENOSYS, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.EMSGSIZE}
_LOCAL_TRANSIENT = {errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN}
# Clients of object stores raise these beside OSError, after retries of their own.
_CLIENT_ERRORS = (
    ("botocore.exceptions", "BotoCoreError"),
    ("botocore.exceptions", "ClientError"),
    ("aiohttp", "ClientError"),
    ("gcsfs.retry", "HttpError"),
    ("google.auth.exceptions", "GoogleAuthError"),
    ("azure.core.exceptions", "AzureError"),
    ("httpx2", "HTTPError"),
    ("httpx", "HTTPError"),
)
_NO_ANSWER = (("httpx2", "TransportError"), ("httpx", "TransportError"))
_HINTS = {
    errno.ENOSPC: "free space on the disk, or put the store elsewhere with --store",
    errno.EDQUOT: "free space in your quota, or put the store elsewhere with --store",
    errno.EROFS: "the file system is read-only: choose another store with --store",
    errno.EACCES: "ask for permission, or choose another store with --store",
    errno.EPERM: "ask for permission, or choose another store with --store",
    errno.ENOTDIR: "a file stands where a folder is needed: choose another path with --store",
    errno.EISDIR: "a folder stands where a file is needed: choose another path",
    errno.ENOSYS: "this storage cannot do what a store needs: choose another one with --store",
    errno.EOPNOTSUPP: "this file system cannot do what a store needs: put the store on another disk with --store",
}


class NotFound(StoreError):
    """Nothing is stored under this URL."""

    def __init__(self, what: str, *, where: str = "", hint: str = "check the URL, or rerun what made it") -> None:
        super().__init__(what, where=where, hint=hint)


class Unavailable(StoreError):
    """The storage did not answer, in several tries; a later one may."""


def attempt(
    call: Callable[[], T],
    url: str,
    *,
    tries: int = TRIES,
    pause: Callable[[float], object] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> T:
    """Return `call()`, retried while the error is transient; NotFound, FileExistsError or StoreError otherwise.

    A call of one try is not patient either: it must not be sent twice.
    """
    began = clock()
    for number in itertools.count(1):
        try:
            return call()
        except FileNotFoundError as error:
            raise NotFound(f"there is no {url}", where=url) from error
        except FileExistsError:
            raise
        except storage_errors() as error:
            transient = _is_transient(error, url)
            if not transient or _has_tried_enough(number, tries, clock() - began):
                gave_up = refused(error, url)
                raise Unavailable(gave_up.what, where=url, hint=gave_up.hint) if transient else gave_up from error
        pause(min(_LONGEST_PAUSE, _FIRST_PAUSE * 2**number) * random.random())
    raise AssertionError("unreachable")


def _has_tried_enough(number: int, tries: int, seconds: float) -> bool:
    if tries == 1:
        return True
    return seconds >= patience() and (number >= tries or seconds >= _ENOUGH_SECONDS)


def storage_errors() -> tuple[type[Exception], ...]:
    """Return the types of error that storage can raise; a client that was never imported raises nothing.

    NotImplementedError is how fsspec says that a storage cannot be written, such as https.
    """
    return (OSError, NotImplementedError, *_loaded(_CLIENT_ERRORS))


def _loaded(names: Iterable[tuple[str, str]]) -> tuple[type[Exception], ...]:
    found = (getattr(sys.modules.get(module), name, None) for module, name in names)
    return tuple(kind for kind in found if kind is not None)


def _is_transient(error: Exception, url: str) -> bool:
    if is_local(url):
        return getattr(error, "errno", None) in _LOCAL_TRANSIENT
    status = getattr(getattr(error, "response", None), "status_code", 0)
    if status:  # an answer of the Hugging Face hub
        return status >= 500 or status in (408, 429)
    if isinstance(error, _loaded(_NO_ANSWER)):
        return True
    return isinstance(error, OSError) and not isinstance(error, _FINAL) and error.errno not in _REMOTE_FINAL


def refused(error: Exception, url: str) -> StoreError:
    """Return the StoreError for a storage error that will not go away."""
    number = getattr(error, "errno", None) or 0
    if isinstance(error, NotImplementedError):
        number = errno.ENOSYS
    hint = _HINTS.get(number, "check that the store is reachable and that your credentials are right")
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return StoreError(f"storage refused: {reason}", where=url, hint=hint)
