"""Storage errors: which are tried again, and what the user is told of the others."""

import errno
import itertools
from collections.abc import Callable, Iterator

import pytest

from marin import fs
from marin.base.errors import StoreError
from marin.fs.faults import TRIES, attempt
from marin.fs.patience import SECONDS

REMOTE, LOCAL = "s3://bucket/x", "/somewhere/x"


def failing(errors: list[Exception]) -> Callable[[], str]:
    """Return a call that raises these errors, one a call, and then succeeds."""
    remaining = iter(errors)

    def call() -> str:
        for error in remaining:
            raise error
        return "done"

    return call


@pytest.mark.parametrize(
    ("url", "error"),
    [
        (REMOTE, OSError(errno.EIO, "503 slow down")),
        (REMOTE, TimeoutError("no answer")),
        (REMOTE, ConnectionResetError("reset")),
        (LOCAL, OSError(errno.ESTALE, "stale NFS handle")),
    ],
)
def test_attempt_transient_error_is_tried_again_after_longer_pauses(url: str, error: OSError):
    pauses: list[float] = []
    assert attempt(failing([error] * (TRIES - 1)), url, pause=pauses.append) == "done"
    assert len(pauses) == TRIES - 1
    assert all(pause <= 0.2 * 2**number for number, pause in enumerate(pauses, start=1))
    with pytest.raises(StoreError):
        attempt(failing([error] * TRIES), url, pause=pauses.append)


class Clock:
    """A time that passes only in pauses and calls."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def pass_by(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def worker() -> Iterator[None]:
    """This process, as long as it is a worker's."""
    fs.be_patient()
    yield
    fs.be_patient(0.0)


def test_attempt_of_a_worker_goes_on_for_a_minute(worker):
    clock, error = Clock(), TimeoutError("no answer")

    def pause(seconds: float) -> None:  # of one length, so that chance plays no part
        clock.pass_by(2.0)

    with pytest.raises(fs.Unavailable):
        attempt(failing([error] * 100), REMOTE, pause=pause, clock=clock)
    assert clock.now == SECONDS
    assert attempt(failing([error] * (TRIES + 3)), REMOTE, pause=clock.pass_by, clock=clock) == "done"
    with pytest.raises(fs.Unavailable):
        attempt(failing([error]), REMOTE, tries=1, pause=clock.pass_by, clock=clock)


def test_attempt_where_each_try_takes_long_ends_before_the_tries_do():
    clock = Clock()

    def call() -> None:
        clock.pass_by(12)
        raise TimeoutError("no answer")

    with pytest.raises(fs.Unavailable):
        attempt(call, REMOTE, pause=clock.pass_by, clock=clock)
    assert 24 <= clock.now < 27


@pytest.mark.parametrize(
    ("url", "error", "hint"),
    [
        (LOCAL, OSError(errno.ENOSPC, "no space"), "free space"),
        (LOCAL, OSError(errno.EROFS, "read-only"), "read-only"),
        (LOCAL, PermissionError(errno.EACCES, "denied"), "permission"),
        (LOCAL, OSError(errno.EOPNOTSUPP, "not supported"), "another disk"),
        (REMOTE, PermissionError("denied"), "credentials"),
        (REMOTE, OSError(errno.EINVAL, "bad range"), "reachable"),
    ],
)
def test_attempt_final_error_is_told_at_once_with_a_hint(url: str, error: OSError, hint: str):
    pauses: list[float] = []
    with pytest.raises(StoreError, match=hint) as caught:
        attempt(failing([error]), url, pause=pauses.append)
    assert caught.value.where == url
    assert not pauses


def test_attempt_absent_file_is_not_found_and_an_existing_one_passes_through():
    with pytest.raises(fs.NotFound):
        attempt(failing([FileNotFoundError("gone")]), REMOTE)
    with pytest.raises(FileExistsError):
        attempt(failing([FileExistsError("there")]), REMOTE)


def test_attempt_error_of_a_clients_own_is_no_traceback():
    # botocore's errors are no OSError; the client has retried them itself.
    exceptions = pytest.importorskip("botocore.exceptions")
    calls = itertools.count()

    def call() -> None:
        next(calls)
        raise exceptions.EndpointConnectionError(endpoint_url="http://localhost:1")

    with pytest.raises(StoreError, match="Could not connect"):
        attempt(call, REMOTE)
    assert next(calls) == 1
