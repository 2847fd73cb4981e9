"""Reading: whole files, ranges, listings, globs and digests.

Control reads bypass listing caches. Nothing here writes.
"""

import contextlib
import fnmatch
import io
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

from blake3 import blake3

from marin.base.errors import StoreError
from marin.fs.faults import NotFound, attempt, refused
from marin.fs.location import is_local, join, normalise, remote
from marin.graph.files import FileRef

_CHUNK_BYTES = 4 << 20
_MAGIC = "*?["


class Entry(NamedTuple):
    """One file of a listing: `path` relative to what was listed, and what the store knows of it."""

    path: str
    url: str
    size: int
    modified_ns: int
    version: str


class Written(NamedTuple):
    """Size and blake3 digest of a file's content."""

    size: int
    digest: str


def read(url: str) -> bytes:
    """Return a file's bytes; raises NotFound or StoreError."""
    if is_local(url):
        return attempt(lambda: Path(url).read_bytes(), url)
    filesystem, path = remote(url)
    return cast(bytes, attempt(lambda: filesystem.cat_file(path), url))


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


def open_read(url: str) -> BinaryIO:
    """Open a file for reading; seekable."""
    if is_local(url):
        return attempt(lambda: open(url, "rb"), url)
    if url.startswith("memory://"):
        return io.BytesIO(read(url))  # fsspec's own file is one object, hence one position, for all its readers
    filesystem, path = remote(url)
    return cast(BinaryIO, attempt(lambda: filesystem.open(path, "rb"), url))


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
                    yield Entry(path, child.path, status.st_size, status.st_mtime_ns, "")


def _remote_entry(root: str, path: str, info: dict[str, object]) -> Entry:
    version = str(info.get("ETag") or info.get("etag") or info.get("generation") or "").strip('"')
    return Entry(path, join(root, path), int(cast(int, info.get("size") or 0)), 0, version)


def glob(pattern: str, *, exclude: Sequence[str] = ()) -> tuple[str, list[Entry]]:
    """Return the pattern's literal folder and the files that match, sorted by path relative to it.

    `*` stays within a folder, `**` crosses them; a pattern without either names one file, or a whole folder. Paths
    that match one of `exclude`, relative to that folder, are left out, whole folders unread where it ends in `/**`.
    """
    pattern = normalise(pattern)
    parts = pattern.split("/")
    literal = next((index for index, part in enumerate(parts) if any(mark in part for mark in _MAGIC)), None)
    if literal is None:
        root, _, name = pattern.rpartition("/")
        root = root or "/"
        if single := _single(root, name):
            return root, [single]
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


def _single(root: str, name: str) -> Entry | None:
    """Return the file of that name in a folder; None when there is none."""
    url = join(root, name)
    if is_local(url):
        return next(_walk(root, "", lambda path: path == name, lambda folder: True), None)
    filesystem, path = remote(url)
    try:
        info = attempt(lambda: filesystem.info(path), url)
    except NotFound:
        return None
    return _remote_entry(root, name, info) if info["type"] == "file" else None


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
    with open_read(url) as file:
        while piece := attempt(lambda: file.read(_CHUNK_BYTES), url):
            hasher.update(piece)
            size += len(piece)
    return Written(size, hasher.hexdigest())


def read_file(file: FileRef) -> bytes:
    """Return a recorded file's bytes; StoreError when they are not those that were recorded."""
    data = read(file.url)
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
