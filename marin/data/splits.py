"""Which bytes make a shard: small files in groups, large ones in pieces.

Invariant: the plan is a function of each file's own path, size and pin and of the size wanted, never of its neighbours
or of the number of workers, so that a file that is added or changed leaves the shards of all others alone.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from marin.base.errors import ConfigurationError, InputError
from marin.data.codecs import codec_of
from marin.data.hashes import bundle, text_hash
from marin.graph.files import FileRef, Shard

LARGE = 2
"""A file of more than so many times `shard_bytes` is cut."""

STREAM_SHARDS = 4
"""Decompressed bytes of a piece of a compressed file, in `shard_bytes`: 256 MB for shards of 64 MB."""

USUAL_RATIO = 3
"""How far compressed text expands, for the first guess of the number of pieces; a wrong guess costs a round."""

MOST_PIECES = 100_000
"""Pieces of one file. Each has files and a record of its own, some 3 ms of work however small it is."""


class Piece(NamedTuple):
    """The lines of a file that begin in decompressed bytes [start, stop)."""

    start: int
    stop: int


def plan_groups(files: Sequence[FileRef], *, target_bytes: int) -> list[Shard]:
    """Return groups of files, in order of path, of `target_bytes` on average; a larger file ends its group.

    A group ends after a file when the hash of its path, as a fraction, is below size / target: no running sum, so
    that adding or removing a file touches the group that holds it and no other.
    """
    if not files:
        raise InputError("there are no files to read", hint="check the pattern and what it excludes")
    groups: list[list[FileRef]] = [[]]
    for file in sorted(files, key=lambda file: file.path):
        groups[-1].append(file)
        if text_hash(file.path) * target_bytes < file.size * 2**64:
            groups.append([])
    return [bundle(group) for group in groups if group]


def is_large(file: FileRef, *, shard_bytes: int) -> bool:
    """Whether a file of lines is cut into pieces."""
    return file.size > LARGE * shard_bytes


def check_pieces(file: FileRef, *, shard_bytes: int) -> None:
    """Raise ConfigurationError when a large file would be cut into more pieces than are worth their work."""
    expanded = file.size * USUAL_RATIO / STREAM_SHARDS if is_stream(file) else file.size
    number = round(expanded / shard_bytes)
    if number > MOST_PIECES:
        least = math.ceil(expanded / MOST_PIECES)
        raise ConfigurationError(
            f"shards of {shard_bytes:,} bytes cut {file.path} into {number:,} pieces; {MOST_PIECES:,} are the most",
            where="shard_bytes",
            hint=f"give at least {least:,}; the default of 64,000,000 suits most corpora",
        )


def ranges(file: FileRef, *, shard_bytes: int) -> list[Piece]:
    """Return equal ranges of a plain file, each of about `shard_bytes`."""
    number = max(1, round(file.size / shard_bytes))
    cuts = [file.size * index // number for index in range(number + 1)]
    return [Piece(start, stop) for start, stop in pairwise(cuts)]


def stream_pieces(file: FileRef, begun: int, *, shard_bytes: int) -> list[Piece]:
    """Return the pieces of a compressed file that follow the first `begun` ones, as many as it is likely to have."""
    size = STREAM_SHARDS * shard_bytes
    guessed = max(1, round(USUAL_RATIO * file.size / size)) if not begun else max(1, begun // 2)
    return [Piece(index * size, (index + 1) * size) for index in range(begun, begun + guessed)]


def piece_shard(file: FileRef, survey: Sequence[FileRef], piece: Piece) -> Shard:
    """Return the shard of one piece of a surveyed file; `survey` is what its survey wrote."""
    return bundle([file, *survey], {"start": piece.start, "stop": piece.stop})


def is_stream(file: FileRef) -> bool:
    """Whether a file can only be read from its begin."""
    return codec_of(file.path) is not None
