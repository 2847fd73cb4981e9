"""Whether a storage can hold a store: tried once, when the store is made.

Invariant: a storage passes only if one of several writers at the same moment wins and its bytes stand. Many fsspec
file systems look first and write then, which tells a second writer from a first one but not two racers apart.
"""

import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from marin.base.errors import StoreError
from marin.fs.faults import NotFound
from marin.fs.location import join
from marin.fs.read import read
from marin.fs.write import create, delete, unique

_RACERS = 4
_ROUNDS = 3


def probe(folder: str) -> None:
    """Check that create-only really is, in `folder`; raises StoreError when two writers could both win."""
    try:
        # The first round is one writer after the other: cheap, and it makes the connection that racers share.
        believable = _in_turn(folder) and all(_raced(folder) for _ in range(_ROUNDS))
    except NotFound as error:
        raise StoreError(
            f"the folder or bucket does not exist, and cannot be made: {folder}",
            where=folder,
            hint="make the bucket first, or choose another store with --store",
        ) from error
    if not believable:
        raise StoreError(
            "this storage lets two writers create the same file, so runs could overwrite each other's results",
            where=folder,
            hint="use a local disk, NFS, S3, GCS or Azure for the store",
        )


def _in_turn(folder: str) -> bool:
    with _probed(folder) as url:
        return (create(url, b"first"), create(url, b"second"), read(url)) == (True, False, b"first")


def _raced(folder: str) -> bool:
    """Whether exactly one of several writers at the same moment won, and its bytes are there."""
    barrier = threading.Barrier(_RACERS)

    def racer(url: str, data: bytes) -> bytes | None:
        barrier.wait()
        return data if create(url, data) else None

    with _probed(folder) as url, ThreadPoolExecutor(_RACERS) as pool:
        entries = [f"racer {number}".encode() for number in range(_RACERS)]
        won = [data for data in pool.map(racer, [url] * _RACERS, entries) if data is not None]
        return won == [read(url)]


@contextlib.contextmanager
def _probed(folder: str) -> Iterator[str]:
    url = join(folder, f".probe-{unique()}")
    try:
        yield url
    finally:
        with contextlib.suppress(StoreError):
            delete(url)
