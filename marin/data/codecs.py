"""Compressed bytes to plain ones: gzip, zstd, xz and bzip2 of any number of members, by the file's suffix.

Invariant: what is held at once is bounded whatever an archive says of itself, a truncated archive is never taken for a
whole one, and bytes after its end that are no archive are an error. Where the bytes come from is not known here.
"""

import bz2
import lzma
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

import zstandard
from isal import isal_zlib

STEP_BYTES = 2**20
"""Plain bytes asked for at once."""

ZSTD_SLICE_BYTES = 4096
"""Compressed bytes that zstd gets at once: at 128 KiB for 4 bytes, the most its format can do, they give 128 MiB."""

XZ_MEMORY_BYTES = 256 * 2**20
"""The largest dictionary that an xz file may ask for; `xz -9` asks for 65 MiB."""

BOMB_FREE_BYTES = 64 * 2**20
"""Plain bytes that any archive may expand to, whatever their ratio to what is stored."""


class Damaged(Exception):
    """The stream is not what its name says, ends early, or expands without measure.

    `reason` is the stable word that it is counted under, `detail` what was seen, `offset` where the whole part ends.
    """

    def __init__(self, detail: str, offset: int, *, reason: str = "archive_damaged", hint: str = "") -> None:
        super().__init__(detail)
        self.detail = detail
        self.offset = offset
        self.reason = reason
        self.hint = hint


class _Member(Protocol):
    """One member (frame, stream) of an archive while it is decompressed; bz2's and lzma's own interface."""

    @property
    def eof(self) -> bool: ...

    @property
    def needs_input(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, max_length: int = -1) -> bytes: ...


_GZIP_ERROR: type[Exception] = isal_zlib.error  # type: ignore[assignment]  # its stub has an instance


class Codec(NamedTuple):
    """A format of compressed files: its name, the bytes that it begins with, and a new member."""

    name: str
    magic: tuple[bytes, ...]
    member: Callable[[], _Member]


class _Gzip:
    """A gzip member, by isal at 2.4 times the speed of zlib; it checks CRC and length."""

    def __init__(self) -> None:
        self._inner = isal_zlib.decompressobj(wbits=31)
        self.needs_input = True

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data

    def decompress(self, data: bytes, max_length: int = -1) -> bytes:
        piece = self._inner.decompress(self._inner.unconsumed_tail + data, max_length)
        self.needs_input = len(piece) < max_length
        return piece


class _Zstd:
    """A zstd frame, fed in slices: the library bounds what it takes in, not what it gives."""

    def __init__(self) -> None:
        self._inner = zstandard.ZstdDecompressor().decompressobj()
        self._left = b""

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def needs_input(self) -> bool:
        return not self._left

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data + self._left

    def decompress(self, data: bytes, max_length: int = -1) -> bytes:
        given = memoryview(self._left + data)
        pieces, size, at = [], 0, 0
        while at < len(given) and size < max_length and not self._inner.eof:
            piece = self._inner.decompress(given[at : at + ZSTD_SLICE_BYTES])
            at += ZSTD_SLICE_BYTES
            size += len(piece)
            pieces.append(piece)
        self._left = bytes(given[at:])
        return b"".join(pieces)


CODECS = {
    "gz": Codec("gzip", (b"\x1f\x8b",), _Gzip),
    "zst": Codec("zstd", (b"\x28\xb5\x2f\xfd", *(bytes([0x50 + n, 0x2A, 0x4D, 0x18]) for n in range(16))), _Zstd),
    "xz": Codec("xz", (b"\xfd7zXZ\x00",), lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=XZ_MEMORY_BYTES)),
    "bz2": Codec("bzip2", (b"BZh",), bz2.BZ2Decompressor),
}
"""By suffix. Skippable zstd frames, as `pzstd` writes them, are frames."""

JSON_LINES = (".jsonl", ".ndjson")

_SUFFIX_OF = {magic: suffix for suffix, codec in CODECS.items() for magic in codec.magic}


def codec_of(path: str) -> Codec | None:
    """Return the codec that the suffix of a path names; None for plain bytes."""
    return CODECS.get(path.rpartition(".")[2].lower())


def is_json_lines(path: str) -> bool:
    """Return whether a name, compressed or not, says that its file holds a JSON object a line."""
    stem = path.rpartition(".")[0] if codec_of(path) is not None else path
    return stem.lower().endswith(JSON_LINES)


def check_magic(path: str, head: bytes) -> None:
    """Raise Damaged when a file begins like another format than its name says; an empty file is none of either."""
    codec, found = codec_of(path), next((s for magic, s in _SUFFIX_OF.items() if head.startswith(magic)), None)
    if codec is None and found is not None and found != "bz2":  # a text may well begin with `BZh`
        raise Damaged(
            f"begins like {CODECS[found].name}, and its name does not end in .{found}",
            0,
            reason="wrong_suffix",
            hint=f"name it `{path}.{found}`.",
        )
    if codec is not None and head and not head.startswith(codec.magic):
        seen = f"begins like {CODECS[found].name}" if found else f"begins with {head[:4].hex(' ')}"
        raise Damaged(
            f"archive damaged: its name says {codec.name}, and it {seen}",
            0,
            reason="wrong_suffix" if found else "archive_damaged",
            hint=f"name it by its format, .{found}." if found else "",
        )


class Decompressed:
    """Iterates over the plain bytes of compressed chunks; raises Damaged after all that is whole."""

    def __init__(
        self, chunks: Iterator[bytes], codec: Codec, *, max_ratio: float, begin: tuple[int, int] = (0, 0)
    ) -> None:
        self._chunks = chunks
        self._codec = codec
        self._max_ratio = max_ratio
        self._taken, self._given = begin
        self.begun = begin
        """Where the member in hand begins, in stored and in plain bytes; the chunks begin with that of `begin`."""

    def __iter__(self) -> Iterator[bytes]:
        data = self._next()
        while data:
            member = self._codec.member()
            self.begun = self._taken - len(data), self._given
            while not member.eof:
                if member.needs_input and not data:
                    data = self._next()
                    if not data:
                        raise Damaged("archive truncated", self._given)
                piece = self._decompress(member, data)
                data = b""
                if piece:
                    yield piece
            data = member.unused_data
            while not (data := data.lstrip(b"\0")):  # padding between members, as tape and block writers leave it
                if not (data := self._next()):
                    return
            if not data.startswith(self._codec.magic) and len(data) >= max(map(len, self._codec.magic)):
                raise Damaged(f"archive damaged: bytes after its end are no {self._codec.name}", self._given)

    def _next(self) -> bytes:
        chunk = next(self._chunks, b"")
        self._taken += len(chunk)
        return chunk

    def _decompress(self, member: _Member, data: bytes) -> bytes:
        try:
            piece = member.decompress(data, STEP_BYTES)
        except (_GZIP_ERROR, zstandard.ZstdError, lzma.LZMAError, OSError, EOFError, ValueError) as error:
            raise Damaged(f"archive damaged: {error}", self._given) from error
        self._given += len(piece)
        if self._given > BOMB_FREE_BYTES and self._given > self._max_ratio * self._taken:
            raise Damaged(
                f"expands to more than {self._max_ratio:g} times its {self._taken} bytes",
                self._given - len(piece),
                reason="archive_bomb",
                hint="give a larger `max_ratio` if it is meant to.",
            )
        return piece
