"""Pins: external inputs by content, so that a result names the bytes it came from.

Local digests are remembered by (path, size, mtime, inode): a touched file is hashed once more and hits again.
The memory is a convenience; without it, or with a damaged one, files are hashed anew. A file that changed within the
last two seconds is not remembered: coarse file times could hide the next edit.
"""

import contextlib
import os
import sqlite3
import stat
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from marin.base.errors import InputError, StoreError
from marin.fs.location import is_local
from marin.fs.read import Entry, digest_file, glob
from marin.graph.files import FileRef

_THREADS = 8
_SETTLED_NS = 2_000_000_000


def default_memo() -> Path:
    """Return where digests of local files are remembered: below the user's cache folder."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(cache) / "marin" / "digests.sqlite"


def pin(patterns: Sequence[str], *, memo: Path | None = None) -> tuple[FileRef, ...]:
    """Return the files that match, sorted by path relative to their pattern's literal folder, with digests.

    A pattern that begins with `!` excludes paths relative to that folder. Raises InputError when a pattern matches
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
        entries.update((entry.url, entry) for entry in found)
    with _Memo(memo) as remembered:
        with ThreadPoolExecutor(_THREADS) as pool:
            pinned = list(pool.map(remembered.pinned, entries.values()))
        remembered.keep(pinned)
    return tuple(sorted((file for _, file in pinned), key=lambda file: (file.path, file.url)))


def _listed(pattern: str, excluded: Sequence[str]) -> list[Entry]:
    try:
        return glob(pattern, exclude=excluded)[1]
    except (StoreError, OSError) as error:
        hint = "check the path and its permission"
        raise InputError(f"cannot list {pattern!r}: {error}", where=pattern, hint=hint) from error


def _key(entry: Entry) -> str:
    return f"{entry.url}\0{entry.size}\0{entry.modified_ns}\0{os.stat(entry.url).st_ino}"


class _Memo:
    """Remembered digests of local files, in one small SQLite file that several processes may share."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._known: dict[str, str] = {}

    def __enter__(self) -> "_Memo":
        if self._path is not None and self._path.exists():
            with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(self._path)) as database:
                self._known = dict(database.execute("select key, digest from digests"))
        return self

    def __exit__(self, *_: object) -> None:
        self._known = {}

    def pinned(self, entry: Entry) -> tuple[str, FileRef]:
        """Return the memo's key (empty: nothing to remember) and the file with its digest."""
        try:
            if is_local(entry.url) and not stat.S_ISREG(os.stat(entry.url).st_mode):
                hint = "leave it out of the pattern"
                raise InputError(f"{entry.path!r} is no regular file", where=entry.url, hint=hint)
            key = _key(entry) if is_local(entry.url) else ""
            digest = self._known.get(key) if key else None
            size = entry.size
            if digest is None:
                size, digest = digest_file(entry.url)
                key = key if time.time_ns() - entry.modified_ns > _SETTLED_NS else ""
            else:
                key = ""
        except (OSError, StoreError) as error:
            reason = error.what if isinstance(error, StoreError) else error
            raise InputError(
                f"cannot read the input file {entry.path!r}: {reason}",
                where=entry.url,
                hint="mend its permission, or leave it out of the pattern",
            ) from error
        return key, FileRef(entry.path, entry.url, size, digest)

    def keep(self, pinned: Iterable[tuple[str, FileRef]]) -> None:
        """Remember the digests that were computed."""
        fresh = [(key, file.digest) for key, file in pinned if key]
        if self._path is None or not fresh:
            return
        with contextlib.suppress(sqlite3.Error, OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.closing(sqlite3.connect(self._path, timeout=5)) as database, database:
                database.execute("create table if not exists digests (key text primary key, digest text)")
                database.executemany("insert or replace into digests values (?, ?)", fresh)
