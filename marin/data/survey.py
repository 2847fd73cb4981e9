"""A survey of a large file, so that its parts can be read alone and still be known to be what was pinned.

One pass over the stored bytes compares the whole with its pin and notes, for each block of 4 MiB, its blake3 digest
and how many newlines it holds. Invariant: a part is read through these blocks, each compared with its digest, so that
a file which changes after the survey never yields a committed shard. The price is one more read of the file, at the
speed of the disk or of blake3 (about 1.5 GB/s a core).
"""

import io
import struct
from collections.abc import Iterator
from typing import BinaryIO

from blake3 import blake3

from marin import fs
from marin.base.json import Json
from marin.data.sources import Verified, changed, opened
from marin.graph.files import FileRef, Output, Shard

BLOCKS = "blocks.bin"
BLOCK_BYTES = 4 * 2**20
_RECORD = struct.Struct("<32sQ")


def survey_shard(shard: Shard, output: Output) -> Json:
    """Write the digests of the blocks of the shard's one file; InputError when it is not what was pinned."""
    (file,) = shard.files
    output.write(BLOCKS, survey(file))
    return {"bytes": file.size}


def survey(file: FileRef) -> bytes:
    """Return the records of a file's blocks, of one pass over it; InputError when it is not what was pinned."""
    table = bytearray()
    with opened(file) as stream:
        raw = Verified(file, stream)
        for block in raw.chunks(BLOCK_BYTES):
            table += note_block(block)
        raw.finish()
    return bytes(table)


def note_block(block: bytes) -> bytes:
    """Return the record of one block of `BLOCK_BYTES`; the last of a file is shorter."""
    return _RECORD.pack(blake3(block).digest(), block.count(b"\n"))


class Surveyed(io.RawIOBase):
    """A surveyed file for reading at any place; every block is compared with the survey, the last one is kept."""

    def __init__(self, file: FileRef, blocks: FileRef) -> None:
        super().__init__()
        self.file = file
        table = fs.read_file(blocks)
        self._blocks: list[tuple[bytes, int]] = list(_RECORD.iter_unpack(table))
        self._context = opened(file)
        self._stream: BinaryIO = self._context.__enter__()
        self._held: tuple[int, bytes] = (-1, b"")
        self._at = 0

    def chunks(self, start: int = 0) -> Iterator[bytes]:
        """Yield the stored bytes from `start` to the end."""
        for number in range(start // BLOCK_BYTES, len(self._blocks)):
            block = self._block(number)
            skipped = max(0, start - number * BLOCK_BYTES)
            yield block[skipped:] if skipped else block

    def newlines_before(self, offset: int) -> int:
        """Return how many newlines stand before an offset of the stored bytes."""
        number, inside = divmod(offset, BLOCK_BYTES)
        counted = sum(newlines for _, newlines in self._blocks[:number])
        return counted + (self._block(number).count(b"\n", 0, inside) if inside else 0)

    def _block(self, number: int) -> bytes:
        if self._held[0] != number:
            try:
                self._stream.seek(number * BLOCK_BYTES)
                block = self._stream.read(BLOCK_BYTES)
            except OSError as error:
                raise changed(self.file, f"cannot be read now: {error}") from error
            if blake3(block).digest() != self._blocks[number][0]:
                raise changed(self.file, f"has other bytes from offset {number * BLOCK_BYTES} now")
            self._held = (number, block)
        return self._held[1]

    def readable(self) -> bool:
        """True."""
        return True

    def seekable(self) -> bool:
        """True."""
        return True

    def tell(self) -> int:
        """Return the position of the next read."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move the position of the next read."""
        self._at = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.file.size}[whence] + offset
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        """Return up to `size` bytes from the position on."""
        stop = self.file.size if size is None or size < 0 else min(self.file.size, self._at + size)
        parts = []
        while self._at < stop:
            number, inside = divmod(self._at, BLOCK_BYTES)
            part = self._block(number)[inside : inside + stop - self._at]
            parts.append(part)
            self._at += len(part)
        return b"".join(parts)

    def close(self) -> None:
        """Close the file below."""
        if not self.closed:
            self._context.__exit__(None, None, None)
        super().close()
