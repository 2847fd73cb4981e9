"""Reading: whole files, ranges, listings, globs and digests.

Control reads bypass listing caches. Nothing here writes.
"""

import contextlib
import fnmatch
import functools
import inspect
import io
import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

from blake3 import blake3

from marin.base.errors import StoreError
from marin.fs.faults import NotFound, attempt, refused
from marin.fs.location import Filesystem, is_local, join, normalise, remote
from marin.graph.files import FileRef

_CHUNK_BYTES = 4 << 20
_PARTS_BYTES = 50 << 20  # s3fs' own bound
_MAGIC = "*?["


class Entry(NamedTuple):
    """One file of a listing: `path` relative to what was listed, and what the store knows of it.

    `version` is another one whenever the content is: a local file's times and inode, an object's generation or ETag.
    Empty where the store knows none.
    """

    path: str
    url: str
    size: int
    changed_ns: int
    """When a local file or its name was last touched; 0 for objects, whose version tells by itself."""
    version: str


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


def list_folder(url: str) -> list[str]:
    """Return the sorted names of a folder's children; an absent folder has none."""
    if is_local(url):
        try:
            return sorted(attempt(lambda: os.listdir(url), url))
        except NotFound:
            return []
    filesystem, path = remote(url)
    try:
        children = attempt(lambda: filesystem.ls(path, detail=False), url)
    except NotFound:
        return []
    names = {child.rstrip("/").rsplit("/", 1)[-1] for child in children if child.rstrip("/") != path.rstrip("/")}
    return sorted(names)


def list_files(url: str) -> list[Entry]:
    """Return all files below a folder, sorted by path; an absent folder has none."""
    return _listed(url, lambda path: True, lambda folder: False)


def _listed(url: str, wanted: Callable[[str], object], pruned: Callable[[str], object]) -> list[Entry]:
    if is_local(url):
        return sorted(_walk(url, "", wanted, pruned))
    filesystem, path = remote(url)
    try:
        found = attempt(lambda: filesystem.find(path, detail=True), url)
    except NotFound:
        return []
    base = path.rstrip("/") + "/"
    below = ((name[len(base) :], info) for name, info in found.items() if name.startswith(base))
    return sorted(_remote_entry(url, name, info) for name, info in below if wanted(name))


def _walk(root: str, below: str, wanted: Callable[[str], object], pruned: Callable[[str], object]) -> Iterator[Entry]:
    folder = os.path.join(root, below)
    try:
        children = os.scandir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise refused(error, folder) from error
    with children:
        for child in children:
            path = f"{below}/{child.name}" if below else child.name
            # Links to folders are not followed: they can lead in circles.
            if child.is_dir(follow_symlinks=False):
                if not pruned(path):
                    yield from _walk(root, path, wanted, pruned)
            elif wanted(path) and not child.is_dir():
                with contextlib.suppress(FileNotFoundError):  # it went away while we looked
                    # A link that leads nowhere is listed, so that reading it fails by name.
                    status = child.stat() if child.is_file() else child.stat(follow_symlinks=False)
                    yield _local_entry(path, child.path, status)


def _local_entry(path: str, url: str, status: os.stat_result) -> Entry:
    # An editor can keep size, inode and mtime; nobody can set ctime back.
    version = f"{status.st_mtime_ns}-{status.st_ctime_ns}-{status.st_ino}"
    return Entry(path, url, status.st_size, max(status.st_mtime_ns, status.st_ctime_ns), version)


def _remote_entry(root: str, path: str, info: dict[str, object]) -> Entry:
    # GCS has both; its etag also changes with what is no content, such as labels.
    version = str(info.get("generation") or info.get("ETag") or info.get("etag") or "")
    if version.startswith("W/"):
        version = ""  # a weak ETag may stay while bytes change
    return Entry(path, join(root, path), int(cast(int, info.get("size") or 0)), 0, version.strip('"'))


def glob(pattern: str, *, exclude: Sequence[str] = ()) -> tuple[str, list[Entry]]:
    """Return the pattern's literal folder and the files that match, sorted by path relative to it.

    `*` stays within a folder, `**` crosses them; a pattern without either names one file, or a whole folder. Paths
    that match one of `exclude`, relative to that folder, are left out, whole folders unread where it ends in `/**`.
    """
    pattern = normalise(pattern)
    parts = pattern.split("/")
    literal = next((index for index, part in enumerate(parts) if any(mark in part for mark in _MAGIC)), None)
    if literal is None:
        if single := entry_of(pattern):
            return pattern.rpartition("/")[0] or "/", [single]
        root, wanted = pattern, _matcher("**")
    else:
        root, wanted = "/".join(parts[:literal]) or "/", _matcher("/".join(parts[literal:]))
    left_out = [_matcher(each) for each in exclude]
    folders = [_matcher(each.removesuffix("/**")) for each in exclude if each.endswith("/**")]
    return root, _listed(
        root,
        lambda path: wanted(path) and not any(each(path) for each in left_out),
        lambda folder: any(each(folder) for each in folders),
    )


def entry_of(url: str) -> Entry | None:
    """Return what the store knows of one file; None when there is no file of that name."""
    root, _, name = url.rpartition("/")
    if is_local(url):
        return _local_file(name, url)
    filesystem, path = remote(url)
    try:
        info = attempt(lambda: filesystem.info(path), url)
    except NotFound:
        return None
    return _remote_entry(root, name, info) if info["type"] == "file" else None


def _local_file(name: str, url: str) -> Entry | None:
    try:
        status = os.stat(url)
    except (FileNotFoundError, NotADirectoryError):
        if not os.path.islink(url):
            return None
        status = os.lstat(url)  # it leads nowhere; reading it fails by name
    except OSError as error:
        raise refused(error, url) from error
    return None if stat.S_ISDIR(status.st_mode) else _local_entry(name, url, status)


def _matcher(pattern: str) -> Callable[[str], bool]:
    """Return whether a relative path matches a relative pattern, part by part."""
    parts = [None if part == "**" else re.compile(fnmatch.translate(part)) for part in pattern.split("/")]
    return lambda path: _matches(path.split("/"), parts)


def _matches(names: list[str], parts: list[re.Pattern[str] | None]) -> bool:
    if not parts or not names:
        return not parts and not names
    first, rest = parts[0], parts[1:]
    if first is None:
        return not rest or any(_matches(names[skipped:], rest) for skipped in range(len(names)))
    return bool(first.match(names[0])) and _matches(names[1:], rest)


def digest_file(url: str) -> Written:
    """Return the size and blake3 digest of a file, reading it in pieces."""
    hasher, size = blake3(), 0
    with open_read(url, ahead_bytes=_CHUNK_BYTES) as file:
        while piece := attempt(lambda: file.read(_CHUNK_BYTES), url):
            hasher.update(piece)
            size += len(piece)
    return Written(size, hasher.hexdigest())


def read_file(file: FileRef) -> bytes:
    """Return a recorded file's bytes; StoreError when they are not those that were recorded."""
    data = read(file.url, expected_bytes=file.size)
    _check(file, blake3(data).hexdigest())
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
    _check(file, digest_file(file.url).digest)


def _check(file: FileRef, digest: str) -> None:
    if digest != file.digest:
        raise StoreError(
            f"`{file.path}` does not have the digest that was recorded when it was made: the file is damaged",
            where=file.url,
            hint="delete this file and run again: what made it runs anew",
        )


class FileReader:
    """Reads what FileRefs point to, checking digests; the Reader of all artifacts."""

    def read(self, file: FileRef) -> bytes:
        """Return the file's bytes."""
        return read_file(file)

    def open(self, file: FileRef) -> BinaryIO:
        """Open the file for reading."""
        return open_file(file)
