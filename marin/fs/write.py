"""Writing: create-only records, atomic replacement, and streams that hash what passes.

Invariants: a file appears whole or not at all, and `create` has one winner. fsspec's local `mode="create"` lets
several racers win and s3fs' empty `open("xb")` overwrites, so local files go through `os.link` and records are
never empty. A lost answer is no failure: what is stored is read before deciding.
"""

import contextlib
import errno
import io
import itertools
import os
import secrets
import shutil
import threading
from collections.abc import Iterator
from typing import Any, BinaryIO

from blake3 import blake3

from marin.base.errors import StoreError
from marin.fs.faults import NotFound, attempt, refused, storage_errors
from marin.fs.location import is_local, remote
from marin.fs.read import Written, read

_MEMORY_LOCK = threading.Lock()
_FOLDER_TRIES = 10
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


def create(url: str, data: bytes, *, durable: bool = True) -> bool:
    """Write a new file; False when it exists already. One racer wins, and nobody sees half of it.

    Without `durable` a local file may be lost when the machine loses power right after: 0.1 ms in place of a disk's
    flush, for records that only guide others, such as leases. Object stores are durable either way, and cannot tell a
    racer with the very same bytes from a request of mine that was sent twice: both win.
    """
    assert data, "records are never empty"
    if is_local(url):
        tries = itertools.count()
        return attempt(lambda: _create_local(url, data, durable, is_first=next(tries) == 0), url)
    filesystem, path = remote(url)
    if url.startswith("memory://"):
        with _MEMORY_LOCK:
            if filesystem.exists(path):
                return False
            filesystem.pipe_file(path, data)
            return True
    try:
        attempt(lambda: filesystem.pipe_file(path, data, mode="create"), url)
    except FileExistsError:
        return _stored(url) == data  # mine, when the answer to the first request was lost
    except StoreError:
        # Refused, or no answer: what stands there decides. Several object stores refuse a racer who has lost by an
        # error that s3fs cannot tell from others.
        stored = None
        with contextlib.suppress(StoreError):
            stored = _stored(url)
        if stored is None:
            raise
        return stored == data
    return True


def _stored(url: str) -> bytes | None:
    """Return what another has put there; None when it is gone again."""
    try:
        return read(url)
    except NotFound:
        return None


def _create_local(url: str, data: bytes, durable: bool, *, is_first: bool) -> bool:
    folder, partial, file = _open_partial(url)
    try:
        with file:
            file.write(data)
            if durable:
                _sync(file)
        try:
            _link(partial, url)
        except FileExistsError:
            # Over NFS the answer to a link that was made can be lost; the second name tells. After a try that failed
            # (such as in the folder's fsync) the file may be the one that I have linked then.
            return os.stat(partial).st_nlink == 2 or (not is_first and _stored(url) == data)
    finally:
        _unlink(partial)
    if durable:
        _sync_folder(folder)
    return True


def _link(partial: str, url: str) -> None:
    try:
        os.link(partial, url)
    except OSError as error:
        # EPERM: what FAT, exFAT and most FUSE file systems answer. My own new file may be linked wherever links exist.
        if error.errno not in _NO_LINKS:
            raise
        raise StoreError(
            "this file system has no hard links, and without them two runs could both commit one result",
            where=url,
            hint="put the store on another disk with --store (not FAT or exFAT; of FUSE only what can link)",
        ) from error


def replace(url: str, data: bytes) -> None:
    """Write a file, atomically in place of what may be there; the last writer wins."""
    if not is_local(url):
        filesystem, path = remote(url)
        attempt(lambda: filesystem.pipe_file(path, data), url)
        return

    def put() -> None:
        _, partial, file = _open_partial(url)
        try:
            with file:
                file.write(data)
            os.replace(partial, url)
        except BaseException:
            _unlink(partial)
            raise

    attempt(put, url)


class DigestWriter(io.RawIOBase):
    """A file open for writing that hashes what passes; `written` tells size and digest once it is closed."""

    def __init__(self, target: BinaryIO, url: str) -> None:
        super().__init__()
        self._target = target
        self._url = url
        self._hasher = blake3()
        self._size = 0

    def writable(self) -> bool:
        """Yes."""
        return True

    def write(self, data: Any, /) -> int:  # Any: anything with a buffer
        """Write and hash a buffer."""
        view = memoryview(data)
        view = view.cast("B") if view.nbytes else memoryview(b"")
        try:
            self._target.write(view)
        except storage_errors() as error:
            raise refused(error, self._url) from error
        self._hasher.update(view)
        self._size += len(view)
        return len(view)

    def tell(self) -> int:
        """Return the number of bytes written so far."""
        return self._size

    @property
    def written(self) -> Written:
        """Size and blake3 digest of what has been written."""
        return Written(self._size, self._hasher.hexdigest())


@contextlib.contextmanager
def write_stream(url: str) -> Iterator[DigestWriter]:
    """Open a file for writing; it is there and whole after the block, absent when the block raises."""
    if is_local(url):
        with _local_stream(url) as stream:
            yield stream
    elif url.startswith("memory://"):
        buffer = io.BytesIO()
        yield DigestWriter(buffer, url)
        replace(url, buffer.getvalue())
    else:
        with _remote_stream(url) as stream:
            yield stream


@contextlib.contextmanager
def _remote_stream(url: str) -> Iterator[DigestWriter]:
    filesystem, path = remote(url)
    target = attempt(lambda: filesystem.open(path, "wb"), url)
    try:
        yield DigestWriter(target, url)
    except BaseException:
        target.closed = True  # or the garbage collector would close it, and store the half
        with contextlib.suppress(*storage_errors()):
            target.discard()
        raise
    attempt(target.close, url, tries=1)  # a second close succeeds without storing anything


@contextlib.contextmanager
def _local_stream(url: str) -> Iterator[DigestWriter]:
    _, partial, opened = attempt(lambda: _open_partial(url), url)
    try:
        with _closed_quietly(opened) as file:
            yield DigestWriter(file, url)
            attempt(lambda: _sync(file), url, tries=1)  # after a failed fsync the next one succeeds, the data lost
        attempt(lambda: os.replace(partial, url), url)
    except BaseException:
        _unlink(partial)
        raise


@contextlib.contextmanager
def _closed_quietly(file: BinaryIO) -> Iterator[BinaryIO]:
    try:
        yield file
    finally:
        with contextlib.suppress(OSError):  # all is on disk, or an error has already said why not
            file.close()


def write(url: str, data: bytes) -> Written:
    """Write a whole file and return its size and digest."""
    with write_stream(url) as stream:
        stream.write(data)
    return stream.written


def delete(url: str) -> None:
    """Delete a file; that it is gone already is fine."""
    if is_local(url):
        attempt(lambda: _unlink(url), url)
        return
    filesystem, path = remote(url)
    with contextlib.suppress(NotFound):
        attempt(lambda: filesystem.rm_file(path), url)


def delete_unchanged(url: str, data: bytes) -> None:
    """Delete a file while its bytes are `data`; what another has put there meanwhile stays.

    Best effort: on object stores, between looking and deleting, another's file can still be hit.
    """
    with contextlib.suppress(NotFound):
        if read(url) != data:
            return
        if not is_local(url):
            delete(url)
            return
        _, aside = _partial(url)
        attempt(lambda: os.rename(url, aside), url)
        if read(aside) != data:
            with contextlib.suppress(FileExistsError):
                os.link(aside, url)
        _unlink(aside)


def delete_folder(url: str) -> None:
    """Delete a folder and all below it; that it is gone already is fine."""
    if is_local(url):
        with contextlib.suppress(NotFound):
            attempt(lambda: shutil.rmtree(url), url)
        return
    filesystem, path = remote(url)
    with contextlib.suppress(NotFound):
        attempt(lambda: filesystem.rm(path, recursive=True), url)


def unique() -> str:
    """Return a name that nobody else has, for private folders and files."""
    return secrets.token_hex(6)


def _open_partial(url: str) -> tuple[str, str, BinaryIO]:
    """Open a new file beside `url`; a folder that was deleted, as an empty one, before it was there is made again.

    The folder is made only when it is missing: most are there.
    """
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        folder, partial = _partial_of(url)
        return folder, partial, open(partial, "xb")
    for _ in range(_FOLDER_TRIES):
        with contextlib.suppress(FileNotFoundError):
            folder, partial = _partial(url)
            return folder, partial, open(partial, "xb")
    raise FileNotFoundError(errno.ENOENT, "its folder vanishes again and again", url)


def _partial(url: str) -> tuple[str, str]:
    folder = os.path.dirname(url)
    try:
        os.makedirs(folder, exist_ok=True)
    except FileExistsError as error:
        raise NotADirectoryError(errno.ENOTDIR, "a file stands in the way of the folder", folder) from error
    return _partial_of(url)


def _partial_of(url: str) -> tuple[str, str]:
    folder, name = os.path.split(url)
    return folder, os.path.join(folder, f".{name}.{unique()}.partial")


def _unlink(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _sync_folder(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
