"""External files as bytes: verified against their pin while they are read, decompressed, split into lines.

Invariant: a file that is not what was pinned when planned never yields a result, and a truncated archive is never
taken for a whole one. Bytes are split on newlines before anything is decoded: one bad line costs one line. What the
bytes mean is not known here.
"""

import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, NamedTuple

import zstandard
from blake3 import blake3

from marin import fs
from marin.base.errors import InputError, StoreError
from marin.graph.files import FileRef

CHUNK_BYTES = 256 * 2**10
"""Compressed bytes taken at once; gzip expands them to at most 256 MiB."""

BOM = b"\xef\xbb\xbf"


class Line(NamedTuple):
    """One line without its newline: its number from 1, its byte offset in the decompressed file, its bytes."""

    number: int
    offset: int
    data: bytes


class Damaged(Exception):
    """The decompressed stream ends early or is not what its format says; `offset` is where the whole part ends."""

    def __init__(self, reason: str, offset: int) -> None:
        super().__init__(reason)
        self.reason = reason
        self.offset = offset


def read_lines(file: FileRef) -> Iterator[Line]:
    """Yield the lines of a file; memory is one chunk and the longest line.

    Raises InputError when the file is unreadable or changed since it was pinned, Damaged when the archive is broken
    (after the lines that are whole).
    """
    number, offset, rest = 0, 0, bytearray()
    for chunk in read_chunks(file):
        lines = chunk.split(b"\n")
        rest += lines[0]
        for following in lines[1:]:
            number += 1
            yield Line(number, offset, bytes(rest))
            offset += len(rest) + 1
            rest = bytearray(following)
    if rest:
        yield Line(number + 1, offset, bytes(rest))


def read_whole(file: FileRef) -> bytes:
    """Return all decompressed bytes of a file; raises as `read_lines` does."""
    return b"".join(read_chunks(file))


def read_chunks(file: FileRef) -> Iterator[bytes]:
    """Yield the decompressed bytes of a file in pieces; `.gz` and `.zst` by suffix, of any number of members."""
    with _opened(file) as stream:
        raw = _Verified(file, stream)
        decompressor = _DECOMPRESSORS.get(file.path.rpartition(".")[2].lower())
        try:
            yield from raw if decompressor is None else _decompress(raw, decompressor)
        except Damaged:
            raw.finish()  # a file that changed is not a damaged one
            raise
        raw.finish()


class _Verified:
    """Iterates over a stream's chunks; `finish` takes the rest and compares all of them with the pin."""

    def __init__(self, file: FileRef, stream: BinaryIO) -> None:
        self._file = file
        self._stream = stream
        self._hash = blake3()
        self._size = 0

    def __iter__(self) -> Iterator[bytes]:
        while chunk := self._stream.read(CHUNK_BYTES):
            self._hash.update(chunk)
            self._size += len(chunk)
            yield chunk

    def finish(self) -> None:
        for _ in self:
            pass
        file = self._file
        if (self._size, self._hash.hexdigest()) != (file.size, file.digest):
            raise InputError(
                f"input changed during the run: `{file.path}` had {file.size} bytes with digest {file.digest[:16]} "
                f"when planned, and has {self._size} with digest {self._hash.hexdigest()[:16]} now",
                where=file.url,
                hint="run again: the plan pins the file as it is now",
            )


@contextmanager
def _opened(file: FileRef) -> Iterator[BinaryIO]:
    try:
        with fs.open_read(file.url) as stream:
            yield stream
    except (OSError, StoreError) as error:
        raise InputError(
            f"cannot read `{file.path}`: {error}", where=file.url, hint="check that it is there and may be read"
        ) from error


def _decompress(chunks: _Verified, new: Callable[[], Any]) -> Iterator[bytes]:  # Any: zlib's and zstandard's agree
    member, begun, offset = new(), False, 0
    for chunk in chunks:
        data = chunk
        while data:
            if member.eof:
                data = data.lstrip(b"\0")  # padding between members, as tape and block writers leave it
                if not data:
                    break
                member = new()
            begun = True
            try:
                piece = member.decompress(data)
            except (zlib.error, zstandard.ZstdError) as error:
                raise Damaged(f"archive damaged: {error}", offset) from error
            offset += len(piece)
            yield piece
            data = member.unused_data if member.eof else b""
    if begun and not member.eof:
        raise Damaged("archive truncated", offset)


_DECOMPRESSORS: dict[str, Callable[[], Any]] = {  # Any: as above
    "gz": lambda: zlib.decompressobj(wbits=31),
    "zst": lambda: zstandard.ZstdDecompressor().decompressobj(),
}
