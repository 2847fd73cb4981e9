"""The lines of one piece of a large file.

Invariant: a piece owns the lines that begin in its bytes, whoever reads it and in whatever order, so that the pieces of
a file give its lines once each, numbered as in the whole. A plain file is read from the piece's begin. A compressed one
is read from the file's begin, or from the frame before the piece where its survey has noted frames, without parsing; a
process that has just read the piece before goes on where it stopped. So a crash costs the parsing and writing of one
piece, and decompressing up to it once more.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from marin.data.codecs import Decompressed, codec_of
from marin.data.frames import BEGIN, Frame, frame_before
from marin.data.lines import LineBlock, LineReader, LongLine
from marin.data.parse import Problem, damage
from marin.data.sources import decompressed
from marin.data.splits import Piece, is_stream
from marin.data.survey import Surveyed
from marin.graph.files import FileRef

_paused: dict[tuple[object, ...], tuple[int, LineReader]] = {}
"""The compressed file that this process read last, paused between two lines: at most one, it holds memory and a file.
With it the end of the piece that was read: its last line mostly ends behind. Every block that it reads is compared with
the survey, so what it gives does not depend on when it was opened."""


@dataclass
class PieceLines:
    """Iterates over a piece's blocks of lines, then over the damage if that lies in it."""

    file: FileRef
    blocks: FileRef
    piece: Piece
    max_line_bytes: int
    max_ratio: float
    frames: FileRef | None = None
    """Where a compressed file can be read from, if its survey has noted that."""
    at_end: bool = False
    """Whether no later piece holds anything."""

    def __iter__(self) -> Iterator[LineBlock | LongLine | Problem]:
        key = (self.file.digest, self.file.url, self.max_line_bytes, self.max_ratio)
        stopped, reader = _paused.pop(key, (0, None)) if is_stream(self.file) else (0, None)
        _paused.clear()
        frame = frame_before(self.frames, self.piece.start)
        if reader is None or not frame.plain <= stopped <= self.piece.start:
            reader = self._opened(frame)
        for _ in reader.until(self.piece.start):
            pass
        yield from reader.until(self.piece.stop)
        if reader.damage is not None and self.piece.start <= reader.damage.offset < self.piece.stop:
            yield damage(self.file.path, reader.damage)
        self.at_end = reader.end is not None and reader.end < self.piece.stop
        if is_stream(self.file) and reader.end is None:
            _paused[key] = self.piece.stop, reader

    def _opened(self, frame: Frame) -> LineReader:
        source = Surveyed(self.file, self.blocks)
        if frame != BEGIN:
            codec = codec_of(self.file.path)
            assert codec is not None
            chunks = source.chunks(frame.stored)
            plain = Decompressed(chunks, codec, max_ratio=self.max_ratio, begin=(frame.stored, frame.plain))
            number = 1 + frame.newlines
            return LineReader(iter(plain), max_line_bytes=self.max_line_bytes, offset=frame.plain, number=number)
        if is_stream(self.file):
            chunks = decompressed(self.file.path, source.chunks(), max_ratio=self.max_ratio)
            return LineReader(chunks, max_line_bytes=self.max_line_bytes)
        # From the byte before: if that is a newline, a line begins with the piece, else its line is another piece's.
        begin = max(0, self.piece.start - 1)
        number = 1 + source.newlines_before(begin)
        chunks = source.chunks(begin)
        if not begin:
            chunks = decompressed(self.file.path, chunks, max_ratio=self.max_ratio)  # its first bytes are looked at
        return LineReader(chunks, max_line_bytes=self.max_line_bytes, offset=begin, number=number)
