"""Listings: what lies below a folder, by path or by pattern, and what the store knows of each file.

Invariant: control reads bypass listing caches. An absent folder holds nothing, and a file that goes away meanwhile is
left out.
"""

import contextlib
import fnmatch
import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, cast

from marin.fs.faults import NotFound, attempt, refused
from marin.fs.hub import PROTOCOL, at_commit, digest_told
from marin.fs.location import is_local, join, normalise, remote

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
    digest: str = ""
    """What the store says of the content itself, as a digest of marin/fs/hashing.py."""


def utf8_name(name: str) -> str:
    r"""Return a file name as text that can be written down; bytes that are no UTF-8 become `\xe9`.

    Python gives such bytes as lone surrogates, which neither SQLite, Arrow nor a terminal takes.
    """
    return os.fsencode(name).decode("utf-8", "backslashreplace")


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
        return sorted(_local_entries(url, wanted, pruned))
    return sorted(_remote_entry(url, path, info) for path, info in remote_below(url) if wanted(path))


def _local_entries(root: str, wanted: Callable[[str], object], pruned: Callable[[str], object]) -> Iterator[Entry]:
    for path, child in local_below(root, pruned):
        if wanted(path) and not child.is_dir():
            with contextlib.suppress(FileNotFoundError):  # it went away while we looked
                # A link that leads nowhere is listed, so that reading it fails by name.
                status = child.stat() if child.is_file() else child.stat(follow_symlinks=False)
                yield _local_entry(path, child.path, status)


def remote_below(url: str) -> Iterator[tuple[str, dict[str, Any]]]:  # Any: fsspec's info
    """Yield the path of each object below a URL, and what its store says of it."""
    filesystem, path = remote(url)
    try:
        found = attempt(lambda: filesystem.find(path, detail=True), url)
    except NotFound:
        return
    base = path.rstrip("/") + "/"
    yield from ((name[len(base) :], info) for name, info in found.items() if name.startswith(base))


def local_below(
    root: str, pruned: Callable[[str], object], below: str = ""
) -> Iterator[tuple[str, "os.DirEntry[str]"]]:
    """Yield whatever lies below a local folder and is no folder, by its path; folders that are `pruned` stay unread.

    Links to folders are not followed, as they can lead in circles: they are yielded themselves.
    """
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
            if not child.is_dir(follow_symlinks=False):
                yield path, child
            elif not pruned(path):
                yield from local_below(root, pruned, path)


def _local_entry(path: str, url: str, status: os.stat_result) -> Entry:
    # An editor can keep size, inode and mtime; nobody can set ctime back.
    version = f"{status.st_mtime_ns}-{status.st_ctime_ns}-{status.st_ino}"
    return Entry(path, url, status.st_size, max(status.st_mtime_ns, status.st_ctime_ns), version)


def _remote_entry(root: str, path: str, info: dict[str, object]) -> Entry:
    # GCS has both; its etag also changes with what is no content, such as labels.
    version = str(info.get("generation") or info.get("ETag") or info.get("etag") or "")
    if version.startswith("W/"):
        version = ""  # a weak ETag may stay while bytes change
    size = int(cast(int, info.get("size") or 0))
    return Entry(path, join(root, path), size, 0, version.strip('"'), digest_told(info))


def glob(pattern: str, *, exclude: Sequence[str] = ()) -> tuple[str, list[Entry]]:
    """Return the pattern's literal folder and the files that match, sorted by path relative to it.

    `*` stays within a folder, `**` crosses them; a pattern without either names one file, or a whole folder. Paths
    that match one of `exclude`, relative to that folder, are left out, whole folders unread where it ends in `/**`.
    """
    pattern = normalise(pattern)
    if pattern.startswith(PROTOCOL):
        pattern = at_commit(pattern)
    parts = pattern.split("/")
    literal = next((index for index, part in enumerate(parts) if any(mark in part for mark in _MAGIC)), None)
    if literal is None:
        if single := entry_of(pattern):
            return pattern.rpartition("/")[0] or "/", [single]
        root, wanted = pattern, matcher("**")
    else:
        root, wanted = "/".join(parts[:literal]) or "/", matcher("/".join(parts[literal:]))
    left_out = [matcher(each) for each in exclude]
    folders = [matcher(each.removesuffix("/**")) for each in exclude if each.endswith("/**")]
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


def matcher(pattern: str) -> Callable[[str], bool]:
    """Return whether a relative path matches a relative pattern, part by part: `*` within a folder, `**` across."""
    parts = [None if part == "**" else re.compile(fnmatch.translate(part)) for part in pattern.split("/")]
    return lambda path: _matches(path.split("/"), parts)


def _matches(names: list[str], parts: list[re.Pattern[str] | None]) -> bool:
    if not parts or not names:
        return not parts and not names
    first, rest = parts[0], parts[1:]
    if first is None:
        return not rest or any(_matches(names[skipped:], rest) for skipped in range(len(names)))
    return bool(first.match(names[0])) and _matches(names[1:], rest)
