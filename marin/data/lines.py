"""A stream of bytes as blocks of whole lines: each block knows the number and the offset of its first line.

Bytes are split on newlines before anything is decoded: one bad line costs one line. Invariant: which lines there are,
and how they are numbered, does not depend on how the bytes arrive or where the reading stops between two lines. Memory
is one chunk and the longest line allowed.
"""

from collections.abc import Iterator
from typing import NamedTuple

from marin.data.codecs import Damaged


class LineBlock(NamedTuple):
    """Whole lines, one after another, each with its newline save perhaps the last of the file.

    `number` (from 1) and `offset` (in decompressed bytes) are of the first line.
    """

    number: int
    offset: int
    data: bytes


class LongLine(NamedTuple):
    """A line that was passed over because it is longer than allowed."""

    number: int
    offset: int


class LineReader:
    """Reads lines forward, and can pause before any line; a second `until` goes on where the first one stopped."""

    def __init__(self, chunks: Iterator[bytes], *, max_line_bytes: int, offset: int = 0, number: int = 1) -> None:
        self._chunks = chunks
        self._max_line_bytes = max_line_bytes
        self._rest = bytearray()
        self._bare = 0
        """So many bytes of the rest have no newline: a line of a GB is not searched anew with every chunk."""
        self._offset, self._number = offset, number
        self._is_skipping = False
        self.end: int | None = None
        """Where the stream ended, once that is known."""
        self.damage: Damaged | None = None
        """Why it ended there, when it should not have."""

    @property
    def offset(self) -> int:
        """Where the next line begins."""
        return self._offset

    def until(self, stop: int | None) -> Iterator[LineBlock | LongLine]:
        """Yield the lines that begin before `stop`; None is the end. A line begun before a damage is not whole."""
        while stop is None or self._offset < stop:
            block = self._cut(stop)
            if block is None:
                if self.end is not None:
                    return
                if (long := self._take()) is not None:
                    yield long
            elif block:
                yield LineBlock(self._number, self._offset, block)
                self._number += block.count(b"\n")
                self._offset += len(block)

    def _cut(self, stop: int | None) -> bytes | None:
        """Take the whole lines that are held and begin before `stop`; None when there are none."""
        if not self._rest or self._is_skipping:
            return None
        wanted = 0
        if stop is not None and self._offset + len(self._rest) > stop:
            # the last line that begins before `stop` ends at the first newline from the byte before `stop` on
            wanted = self._rest.find(b"\n", max(self._bare, stop - self._offset - 1)) + 1
        wanted = wanted or self._rest.rfind(b"\n", self._bare) + 1
        if not wanted and self.end is not None:
            wanted = len(self._rest)
        if not wanted:
            self._bare = len(self._rest)
            return None
        block = bytes(memoryview(self._rest)[:wanted])
        del self._rest[:wanted]
        self._bare = 0
        return block

    def _take(self) -> LongLine | None:
        """Hold one more chunk; gives a line that has become too long, whose rest is passed over."""
        try:
            chunk = next(self._chunks, None)
        except Damaged as damage:
            self.damage, chunk = damage, None
            self._rest.clear()
            self._bare = 0
        if chunk is None:
            self.end = self.damage.offset if self.damage else self._offset + len(self._rest)
            return None
        if not self._is_skipping:
            self._rest += chunk
            if len(self._rest) <= self._max_line_bytes or b"\n" in chunk:
                return None  # a line of this length that has its end is left for the caller to measure
            long = LongLine(self._number, self._offset)
            self._offset += len(self._rest)
            self._rest.clear()
            self._bare = 0
            self._is_skipping = True
            return long
        newline = chunk.find(b"\n") + 1
        self._offset += newline or len(chunk)
        if newline:
            self._number += 1
            self._is_skipping = False
            self._rest += memoryview(chunk)[newline:]
        return None
