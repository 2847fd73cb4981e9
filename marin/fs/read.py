"""Reading: whole files, ranges and digests.

Nothing here writes. What was recorded is read only with the digest that it was recorded with.
"""

import functools
import inspect
import io
import os
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

from blake3 import blake3

from marin.base.errors import StoreError
from marin.fs.faults import attempt
from marin.fs.hashing import Hasher, hasher_like, is_digest
from marin.fs.location import Filesystem, is_local, remote
from marin.graph.files import FileRef

_CHUNK_BYTES = 4 << 20
_PARTS_BYTES = 50 << 20  # s3fs' own bound


class Written(NamedTuple):
    """Size and blake3 digest of a file's content."""

    size: int
    digest: str


def read(url: str, *, expected_bytes: int = 0) -> bytes:
    """Return a file's bytes; raises NotFound or StoreError. One request, unless a large file is expected."""
    if is_local(url):
        return attempt(lambda: Path(url).read_bytes(), url)
    filesystem, path = remote(url)
    options = {}
    if expected_bytes < _PARTS_BYTES and _fetches_parts(filesystem):
        options["max_concurrency"] = 1
    return cast(bytes, attempt(lambda: filesystem.cat_file(path, **options), url))


@functools.cache
def _fetches_parts(filesystem: Filesystem) -> bool:
    """Whether a file system asks for the size first, to fetch what is large in parts: twice the latency of a record."""
    return "max_concurrency" in inspect.signature(getattr(filesystem, "_cat_file", filesystem.cat_file)).parameters


def read_range(url: str, start: int, length: int) -> bytes:
    """Return `length` bytes from `start`, fewer at the end of the file."""
    if length <= 0:
        return b""
    if is_local(url):
        return attempt(lambda: _local_range(url, start, length), url)
    filesystem, path = remote(url)
    return cast(bytes, attempt(lambda: filesystem.cat_file(path, start=start, end=start + length), url))


def _local_range(url: str, start: int, length: int) -> bytes:
    with open(url, "rb") as file:
        file.seek(start)
        return file.read(length)


def open_read(url: str, *, ahead_bytes: int | None = None) -> BinaryIO:
    """Open a file for reading; seekable. `ahead_bytes`: how much an object store's client may hold beyond a read."""
    if is_local(url):
        return attempt(lambda: open(url, "rb"), url)
    if url.startswith("memory://"):
        return io.BytesIO(read(url))  # fsspec's own file is one object, hence one position, for all its readers
    filesystem, path = remote(url)
    options = {} if ahead_bytes is None else {"block_size": ahead_bytes}
    return cast(BinaryIO, attempt(lambda: filesystem.open(path, "rb", **options), url))


def exists(url: str) -> bool:
    """Whether a file or folder is there."""
    if is_local(url):
        return os.path.exists(url)
    filesystem, path = remote(url)
    return bool(attempt(lambda: filesystem.exists(path), url))


def digest_file(url: str) -> Written:
    """Return the size and blake3 digest of a file, reading it in pieces."""
    hasher = blake3()
    return Written(_read_into(url, hasher), hasher.hexdigest())


def _read_into(url: str, hasher: Hasher) -> int:
    size = 0
    with open_read(url, ahead_bytes=_CHUNK_BYTES) as file:
        while piece := attempt(lambda: file.read(_CHUNK_BYTES), url):
            hasher.update(piece)
            size += len(piece)
    return size


def read_file(file: FileRef) -> bytes:
    """Return a recorded file's bytes; StoreError when they are not those that were recorded."""
    data = read(file.url, expected_bytes=file.size)
    hasher = hasher_like(file.digest, len(data))
    hasher.update(data)
    _check(file, hasher)
    return data


def open_file(file: FileRef) -> BinaryIO:
    """Open a recorded file for reading; StoreError when its bytes are not those that were recorded.

    A local file is read once to check it, which also brings it into the page cache; another one is held in memory.
    """
    if not is_local(file.url):
        return io.BytesIO(read_file(file))
    check_file(file)
    return open_read(file.url)


def check_file(file: FileRef) -> None:
    """Raise StoreError unless a file's bytes are those that were recorded."""
    hasher = hasher_like(file.digest, file.size)
    _read_into(file.url, hasher)
    _check(file, hasher)


def _check(file: FileRef, hasher: Hasher) -> None:
    if not is_digest(file.digest, hasher):
        raise StoreError(
            f"`{file.path}` does not have the digest that was recorded when it was made: the file is damaged",
            where=file.url,
            hint="if a step made it, delete this file and run again: the step runs anew; if it is your own input, put "
            "the recorded one back, or run again and it is pinned as it is now",
        )


class FileReader:
    """Reads what FileRefs point to, checking digests; the Reader of all artifacts."""

    def read(self, file: FileRef) -> bytes:
        """Return the file's bytes."""
        return read_file(file)

    def open(self, file: FileRef) -> BinaryIO:
        """Open the file for reading."""
        return open_file(file)
