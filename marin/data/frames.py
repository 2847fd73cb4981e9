"""Where the frames of a compressed file begin, so that a part of it is decompressed from the frame before.

A zstd file of many frames, as `pzstd` or `zstd` with pieces joined makes them, need not be read from its begin. The
survey decompresses it once to note, for every frame that begins a megabyte of plain bytes after the one noted before,
its place in stored and plain bytes and how many newlines stand before. Invariant: a table only shortens the way; which
lines a piece has, and how they are numbered, does not depend on it. At damage it ends, and whoever reads there says so.
"""

import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from marin import fs
from marin.base.json import Json
from marin.data.codecs import Damaged, Decompressed, codec_of
from marin.data.sources import MAX_RATIO, Verified, opened
from marin.data.survey import BLOCK_BYTES, BLOCKS, note_block
from marin.graph.files import FileRef, Output, Shard

FRAMES = "frames.bin"
APART_BYTES = 2**20
_RECORD = struct.Struct("<QQQ")
_FRAMED = "zstd"


class Frame(NamedTuple):
    """A place to decompress from: offsets in stored and plain bytes, and the newlines before."""

    stored: int
    plain: int
    newlines: int


BEGIN = Frame(0, 0, 0)


def is_framed(file: FileRef) -> bool:
    """Whether a file may be of frames that are worth a table."""
    codec = codec_of(file.path)
    return codec is not None and codec.name == _FRAMED


def survey_frames_shard(shard: Shard, output: Output) -> Json:
    """Write the digests of the blocks of the shard's one file, and its frames; InputError when it is not as pinned."""
    (file,) = shard.files
    blocks, frames = bytearray(), bytearray()
    with opened(file) as stream:
        raw = Verified(file, stream)
        noted = _noted(raw.chunks(BLOCK_BYTES), blocks)
        with suppress(Damaged):
            for frame in frames_of(file.path, noted):
                frames += _RECORD.pack(*frame)
        for _ in noted:
            pass
        raw.finish()
    output.write(BLOCKS, bytes(blocks))
    output.write(FRAMES, bytes(frames))
    return {"bytes": file.size, "frames": len(frames) // _RECORD.size}


def _noted(blocks: Iterator[bytes], table: bytearray) -> Iterator[bytes]:
    for block in blocks:
        table += note_block(block)
        yield block


def frames_of(path: str, chunks: Iterator[bytes]) -> Iterator[Frame]:
    """Yield frames at least `APART_BYTES` of plain bytes apart, and from the begin; Damaged where they end."""
    codec = codec_of(path)
    assert codec is not None
    plain = Decompressed(chunks, codec, max_ratio=MAX_RATIO)
    newlines, last = 0, 0
    begun: tuple[int, int] | None = None
    for piece in plain:
        if plain.begun != begun:
            begun = plain.begun
            if begun[1] - last >= APART_BYTES:
                last = begun[1]
                yield Frame(*begun, newlines)
        newlines += piece.count(b"\n")


def frame_before(frames: FileRef | None, plain: int) -> Frame:
    """Return the last noted frame before a plain offset; not at it, as the byte before tells whether a line begins."""
    found = BEGIN
    if frames is not None:
        for record in _RECORD.iter_unpack(fs.read_file(frames)):
            frame = Frame(*record)
            if frame.plain >= plain:
                break
            found = frame
    return found
