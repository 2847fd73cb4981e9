"""Parsed files, remembered on disk: no text is parsed twice, not even by two processes.

An entry is keyed by the text's blake3, the Python that reads it and marin's own reader, and carries a checksum. The
memory is a convenience: without it, or with a damaged, locked or read-only one, files are parsed anew.
"""

import contextlib
import os
import sqlite3
import sys
import warnings
from functools import lru_cache
from pathlib import Path
from types import CodeType
from typing import NamedTuple

import blake3
import orjson

from marin.graph.code import piece, scope, source, walk
from marin.graph.code.piece import digest
from marin.graph.code.source import ModuleSource, from_json, parse, to_json

_KEPT = 20_000
_PATIENCE_SECONDS = 1.0
_ARGUMENTS_AND_KIND = 0x2AC
"""Bits of `co_flags` that the source decides: *args, **kwargs, generator, coroutine, async generator."""


class Parsed(NamedTuple):
    """What a text says, and the keys of the code objects that it compiles to."""

    source: ModuleSource
    codes: frozenset[str]


def default_memo() -> Path:
    """Return where parsed files are remembered: below the user's cache folder."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(cache) / "marin" / "parsed.sqlite"


def parsed(text: bytes, memo: "Memo") -> Parsed:
    """Return what a text says; SyntaxError when it is no Python."""
    key = blake3.blake3(text).hexdigest()
    known = memo.get(key)
    if known is not None:
        return known
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of the user's own text were shown when it was imported
        found = Parsed(parse(text), frozenset(_keys(compile(text, "<source>", "exec", dont_inherit=True))))
    memo.put(key, found)
    return found


def code_key(code: CodeType) -> str:
    """Return what tells a code object from that of an edited text: where it begins, and all that it does."""
    return _key(code, [])


def _keys(code: CodeType) -> list[str]:
    found: list[str] = []
    _key(code, found)
    return found


def _key(code: CodeType, found: list[str]) -> str:
    """Return the key of a code object; add it and those of the code inside to `found`."""
    constants = [_constant(value, found) for value in code.co_consts]
    counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags & _ARGUMENTS_AND_KIND)
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    says = (code.co_qualname, code.co_firstlineno, counts, code.co_code, names, constants, code.co_exceptiontable)
    found.append(digest(repr(says))[:32])
    return found[-1]


def _constant(value: object, found: list[str]) -> str:
    if isinstance(value, CodeType):
        return _key(value, found)
    if isinstance(value, tuple):
        return f"({','.join([_constant(member, found) for member in value])})"
    if isinstance(value, frozenset):
        return f"{{{','.join(sorted(_constant(member, found) for member in value))}}}"
    return f"{type(value).__name__}:{value!r}"


@lru_cache(maxsize=1)
def _reader() -> str:
    """Return what entries depend on besides the text; empty when marin's own source cannot be read."""
    try:
        texts = [Path(str(module.__file__)).read_bytes() for module in (piece, scope, source, walk)]
        texts.append(Path(__file__).read_bytes())
    except OSError:
        return ""
    return f"{sys.implementation.cache_tag} {sys.hexversion:x} {sys.flags.optimize} {digest(repr(texts))[:32]}"


class Memo:
    """One small SQLite file that several processes may share."""

    def __init__(self, path: Path | None) -> None:
        self.path = path if _reader() else None
        self._fresh: dict[str, Parsed] = {}
        self._database: tuple[int, sqlite3.Connection] | None = None

    def get(self, key: str) -> Parsed | None:
        """Return what is remembered of a text."""
        database = self._open()
        if database is None:
            return None
        try:
            row = database.execute(
                "select checksum, entry from parsed where key = ?", (f"{_reader()} {key}",)
            ).fetchone()
        except sqlite3.Error:
            return None
        if row is None or not isinstance(row[1], bytes) or blake3.blake3(row[1]).digest() != row[0]:
            return None
        with contextlib.suppress(TypeError, ValueError):  # of another shape, though it was written by us
            said, codes = orjson.loads(row[1])
            return Parsed(from_json(said), frozenset(codes))
        return None

    def put(self, key: str, found: Parsed) -> None:
        """Remember a text at the next `keep`."""
        if self.path is not None:
            self._fresh[key] = found

    def keep(self) -> None:
        """Write what was parsed."""
        fresh, self._fresh = self._fresh, {}
        if self.path is None or not fresh:
            return
        rows = []
        for key, found in fresh.items():
            with contextlib.suppress(TypeError):  # a lone surrogate in a name is no UTF-8
                entry = orjson.dumps([to_json(found.source), sorted(found.codes)])
                rows.append((f"{_reader()} {key}", blake3.blake3(entry).digest(), entry))
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.closing(sqlite3.connect(self.path, timeout=_PATIENCE_SECONDS)) as database, database:
                database.execute("pragma synchronous = off")  # a torn memory is found out by its checksums
                database.execute("create table if not exists parsed (key text primary key, checksum blob, entry blob)")
                database.executemany("insert or replace into parsed values (?, ?, ?)", rows)
                database.execute("delete from parsed where rowid <= (select max(rowid) from parsed) - ?", (_KEPT,))
        except (sqlite3.OperationalError, OSError):  # locked, read-only, full
            return
        except sqlite3.DatabaseError:  # damaged: the next process begins a new one
            with contextlib.suppress(OSError):
                self.path.unlink()

    def _open(self) -> sqlite3.Connection | None:
        """Return this process's connection: one that was opened before a fork must not be used."""
        if self._database is not None and self._database[0] == os.getpid():
            return self._database[1]
        if self.path is None or not self.path.exists():
            return None
        with contextlib.suppress(sqlite3.Error):
            address = f"{self.path.absolute().as_uri()}?mode=ro"
            database = sqlite3.connect(address, uri=True, timeout=_PATIENCE_SECONDS, check_same_thread=False)
            self._database = os.getpid(), database
            return database
        return None
