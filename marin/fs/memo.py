"""Remembered digests: what a file's content was when it had this size and this version.

One small SQLite file below the user's cache folder, shared by processes. It is a convenience: without it, or with a
damaged one, files are hashed anew. Invariant: nothing is remembered that could be true of other content.
"""

import contextlib
import os
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from marin.fs.listing import Entry, utf8_name

_ASKED_AT_ONCE = 500  # SQLite bounds the parameters of a statement
_SETTLED_NS = 2_000_000_000


def default_memo() -> Path:
    """Return where digests are remembered: below the user's cache folder."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(cache) / "marin" / "digests.sqlite"


def recall(path: Path | None, entries: Sequence[Entry]) -> Mapping[str, str]:
    """Return the remembered digests of these files by URL."""
    known: dict[str, str] = {}
    urls = {_key(entry): entry.url for entry in entries if entry.version}
    if path is None or not urls or not path.exists():
        return known
    keys = list(urls)
    with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(path)) as database:
        for start in range(0, len(keys), _ASKED_AT_ONCE):
            asked = keys[start : start + _ASKED_AT_ONCE]
            marks = ",".join("?" * len(asked))
            rows = database.execute(f"select key, digest from digests where key in ({marks})", asked)
            known.update((urls[key], digest) for key, digest in rows)
    return known


def remember(path: Path | None, digests: Iterable[tuple[Entry, str]], *, now_ns: int) -> None:
    """Remember digests that were computed from these very versions.

    A local file touched within the last two seconds is left out: coarse file times could hide the next edit.
    """
    settled = [
        (_key(entry), digest) for entry, digest in digests if entry.version and now_ns - entry.changed_ns > _SETTLED_NS
    ]
    if path is None or not settled:
        return
    with contextlib.suppress(sqlite3.Error, OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.closing(sqlite3.connect(path, timeout=5)) as database, database:
            database.execute("create table if not exists digests (key text primary key, digest text)")
            database.executemany("insert or replace into digests values (?, ?)", settled)


def _key(entry: Entry) -> str:
    return f"{utf8_name(entry.url)}\0{entry.size}\0{entry.version}"
