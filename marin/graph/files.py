"""Nouns for bytes that exist: a file, a shard, the contents of an artifact, and the two doors to them.

Invariant: everything here is a frozen value that pickles small; the bytes stay in the store. Digests are blake3
hex of a file's content, or of a pinned input what its store names it by (marin/fs/hashing.py). This module knows URLs
as text only: `marin.fs` reads and writes.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import BinaryIO, Protocol

from marin.base.json import Json


@dataclass(frozen=True, slots=True)
class FileRef:
    """One immutable file: its logical `path` inside what holds it, where its bytes are, size and digest."""

    path: str
    url: str
    size: int
    digest: str


@dataclass(frozen=True, slots=True)
class Shard:
    """Numbered piece of an artifact: what one call of a shard function wrote and returned.

    `digest` covers paths, file digests and `value`; it alone identifies the shard in fingerprints.
    """

    name: str
    digest: str
    files: tuple[FileRef, ...] = ()
    value: Json = None

    def file(self, path: str) -> FileRef:
        """Return the file called `path`; KeyError names what the shard has."""
        return find_file(self.files, path)


class Reader(Protocol):
    """Reads the bytes behind a FileRef and checks their digest; `marin.fs` has the implementation."""

    def read(self, file: FileRef) -> bytes: ...

    def open(self, file: FileRef) -> BinaryIO: ...


@dataclass(frozen=True, slots=True)
class Contents:
    """What an artifact is made of: its own files, its shards, and a small JSON `meta` from its step.

    `digest` is the output digest; empty until the artifact is committed.
    """

    reader: Reader
    files: tuple[FileRef, ...] = ()
    shards: tuple[Shard, ...] = ()
    meta: Json = None
    digest: str = ""

    def file(self, path: str) -> FileRef:
        """Return the artifact's own file called `path`; KeyError names what it has."""
        return find_file(self.files, path)


class Output(Protocol):
    """Private folder of one attempt (or one shard): what is written here is hashed while it streams.

    Nothing in it is visible to others before the commit. Paths are relative, posix, and may not climb.
    """

    @property
    def url(self) -> str: ...

    @property
    def files(self) -> tuple[FileRef, ...]: ...

    def open(self, path: str) -> AbstractContextManager[BinaryIO]:
        """Open a new file for writing; whole and recorded at the end of the `with` block, absent on an error."""

    def write(self, path: str, data: bytes) -> FileRef:
        """Write a whole file."""

    def adopt(self, files: Sequence[FileRef]) -> None:
        """Record files that another process of this attempt (a rank) has written under `url`."""

    def contents(self, *, meta: Json = None, shards: Sequence[Shard] = ()) -> Contents:
        """Return what has been written so far, to make the artifact from."""


def find_file(files: Sequence[FileRef], path: str) -> FileRef:
    """Return the file called `path`; KeyError names what there is."""
    for file in files:
        if file.path == path:
            return file
    raise KeyError(f"no file {path!r} among {[file.path for file in files]}")
