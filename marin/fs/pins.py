"""Pins: external inputs by content, so that a result names the bytes it came from.

Digests are remembered by what changes with the content: path, size, times and inode of a local file, size and
generation or ETag of an object. What a store says of the content itself is taken at its word, and checked when the
file is read. So each file is read once, a touched one once more, and an unchanged corpus costs a
listing. A file that is another one after it was read than before is not remembered.
"""

import contextlib
import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from marin.base.errors import InputError, StoreError
from marin.fs.listing import Entry, entry_of, glob, utf8_name
from marin.fs.location import REMOTE_CONNECTIONS, is_local
from marin.fs.memo import default_memo, recall, remember
from marin.fs.read import digest_file
from marin.graph.files import FileRef

__all__ = ["check_unchanged", "default_memo", "pin"]

_THREADS = 8
_REMOTE_THREADS = 16  # each holds some 10 MB of the file that it reads


def pin(
    patterns: Sequence[str], *, memo: Path | None = None, clock_ns: Callable[[], int] = time.time_ns
) -> tuple[FileRef, ...]:
    """Return the files that match, sorted by path relative to their pattern's literal folder, with digests.

    A pattern that begins with `!` excludes paths relative to that folder. A name that is no UTF-8 has its stray bytes
    escaped in `path`, which names documents, and as they are in `url`. Raises InputError when a pattern matches
    nothing or a file cannot be read.
    """
    excluded = [pattern[1:] for pattern in patterns if pattern.startswith("!")]
    entries: dict[str, Entry] = {}
    for pattern in patterns:
        if pattern.startswith("!"):
            continue
        found = _listed(pattern, excluded)
        if not found:
            raise InputError(f"no file matches {pattern!r}", where=pattern, hint="check the pattern and where you run")
        entries.update((entry.url, entry._replace(path=utf8_name(entry.path))) for entry in found)
    pinned = _pinned(list(entries.values()), memo, clock_ns)
    return tuple(sorted(pinned, key=lambda file: (file.path, file.url)))


def check_unchanged(
    files: Sequence[FileRef], *, memo: Path | None = None, clock_ns: Callable[[], int] = time.time_ns
) -> None:
    """Raise InputError when a pinned file is not what it was when it was planned.

    Where the digests are remembered this costs one question a file; elsewhere the files are read once.
    """
    if all(is_local(file.url) for file in files):
        found = list(map(_found, files))  # a thread takes longer than the answer
    else:
        with ThreadPoolExecutor(REMOTE_CONNECTIONS) as pool:
            found = list(pool.map(_found, files))
    for file, now in zip(files, _pinned(found, memo, clock_ns), strict=True):
        if (now.size, now.digest) != (file.size, file.digest):
            raise InputError(
                f"input changed during the run: `{file.path}` had {file.size} bytes with digest {file.digest[:16]} "
                f"when planned, and has {now.size} with digest {now.digest[:16]} now",
                where=file.url,
                hint="run again: the plan pins the file as it is now",
            )


def _found(file: FileRef) -> Entry:
    with _named(file.path, file.url):
        entry = entry_of(file.url)
    if entry is None:
        raise InputError(
            f"input changed during the run: `{file.path}` is gone",
            where=file.url,
            hint="put the file back, or run again without it",
        )
    return entry._replace(path=file.path)


def _listed(pattern: str, excluded: Sequence[str]) -> list[Entry]:
    try:
        return glob(pattern, exclude=excluded)[1]
    except (StoreError, OSError) as error:
        hint = "check the path and its permission"
        raise InputError(f"cannot list {pattern!r}: {error}", where=pattern, hint=hint) from error


class _Hashed(NamedTuple):
    """A file that was read: as it was found, with the bytes that were read."""

    entry: Entry
    file: FileRef
    is_same: bool
    """It was the same version before and after."""


def _pinned(entries: Sequence[Entry], memo: Path | None, clock_ns: Callable[[], int]) -> list[FileRef]:
    """Return the files with their digests, in the given order; what is not remembered is read."""
    told = {entry.url: entry.digest for entry in entries if entry.digest}
    known = {**recall(memo, [entry for entry in entries if not entry.digest]), **told}
    unknown = [entry for entry in entries if entry.url not in known]
    now_ns = clock_ns()
    with ThreadPoolExecutor(_threads([entry.url for entry in unknown])) as pool:
        hashed = list(pool.map(_hashed, unknown))
    remember(memo, [(each.entry, each.file.digest) for each in hashed if each.is_same], now_ns=now_ns)
    fresh = {each.entry.url: each.file for each in hashed}
    return [fresh.get(entry.url) or FileRef(entry.path, entry.url, entry.size, known[entry.url]) for entry in entries]


def _threads(urls: Sequence[str]) -> int:
    return _THREADS if all(is_local(url) for url in urls) else _REMOTE_THREADS


def _hashed(entry: Entry) -> _Hashed:
    with _named(entry.path, entry.url):
        if is_local(entry.url) and not stat.S_ISREG(os.stat(entry.url).st_mode):
            hint = "leave it out of the pattern"
            raise InputError(f"{entry.path!r} is no regular file", where=entry.url, hint=hint)
        size, digest = digest_file(entry.url)
        after = entry_of(entry.url) if entry.version else None
    before = (size, entry.version)
    is_same = after is not None and (entry.size, entry.version) == before == (after.size, after.version)
    return _Hashed(entry, FileRef(entry.path, entry.url, size, digest), is_same)


@contextlib.contextmanager
def _named(path: str, url: str) -> Iterator[None]:
    """Turn a refusal of the storage into an InputError that names the file."""
    try:
        yield
    except (OSError, StoreError) as error:
        raise InputError(
            f"cannot read the input file {path!r}: {error.what if isinstance(error, StoreError) else error}",
            where=url,
            hint="mend its permission, or leave it out of the pattern",
        ) from error
