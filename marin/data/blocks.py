"""Checksums of parts of large files, so that a reader of a part need not read the whole to trust it.

A *block* is 8 MiB of a file, at a multiple of 8 MiB; its checksum is xxh3-128, in hex. They are computed while a file
is written and travel in the value of its shard. Invariant: what `check_block` lets pass is what was written, up to
accidents of 2^-128. It does not know what the bytes mean.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
import xxhash

from marin.base.errors import StoreError
from marin.data.token_files import array_header
from marin.graph.files import FileRef, Output

BLOCK_BYTES = 8 * 2**20
COPY_BYTES = 2**19
"""What is copied, summed and written at once: it stays in a core's cache, and is never returned to the system."""


class Checked(NamedTuple):
    """A file, the checksums of its blocks (none where it was made without), and the shard that it belongs to."""

    file: FileRef
    sums: Sequence[str] = ()
    shard: str = ""

    def block_range(self, number: int) -> tuple[int, int]:
        """Return where a block begins, and its length."""
        begin = number * BLOCK_BYTES
        return begin, min(BLOCK_BYTES, self.file.size - begin)


class BlockSums:
    """Sums up the blocks of what passes through `update`."""

    def __init__(self) -> None:
        self._sums: list[str] = []
        self._state = xxhash.xxh3_128()
        self._room = BLOCK_BYTES

    def update(self, data: memoryview) -> None:
        """Add bytes."""
        while len(data) >= self._room:
            self._state.update(data[: self._room])
            data = data[self._room :]
            self._end()
        self._state.update(data)
        self._room -= len(data)

    def finish(self) -> list[str]:
        """Return the checksum of each block, the last one perhaps a short one."""
        if self._room < BLOCK_BYTES:
            self._end()
        return self._sums

    def _end(self) -> None:
        self._sums.append(self._state.hexdigest())
        self._state = xxhash.xxh3_128()
        self._room = BLOCK_BYTES


def write_summed(
    output: Output, path: str, parts: Iterable[np.ndarray], shape: Sequence[int], dtype: np.dtype
) -> list[str]:
    """Write the same file as `write_array`, and return the checksum of each of its blocks."""
    sums = BlockSums()
    write_parts(output, path, parts, shape, dtype, seen=sums.update)
    return sums.finish()


def write_parts(
    output: Output,
    path: str,
    parts: Iterable[np.ndarray],
    shape: Sequence[int],
    dtype: np.dtype,
    *,
    seen: Callable[[memoryview], None] | None = None,
) -> None:
    """Write the same file as `write_array`; `seen` is shown all its bytes.

    Parts are written as they come, before the next is asked for, so that all may share one buffer.
    """
    written = 0
    with output.open(path) as file:
        for data in chain([memoryview(array_header(shape, dtype))], map(_bytes, parts)):
            if seen is not None:
                seen(data)
            file.write(data)
            written += len(data)
    expected = len(array_header(shape, dtype)) + math.prod(shape) * dtype.itemsize
    assert written == expected, f"{written} bytes in place of {expected}, for {shape} of {dtype}"


def _bytes(part: np.ndarray) -> memoryview:
    return part.reshape(-1).data.cast("B") if part.size else memoryview(b"")


def copy_buffer(dtype: np.dtype) -> np.ndarray:
    """Return a buffer for `joined`."""
    return np.empty(COPY_BYTES // dtype.itemsize, dtype)


def joined(views: Sequence[np.ndarray], lengths: np.ndarray, buffer: np.ndarray) -> Iterator[np.ndarray]:
    """Yield arrays of the given lengths one after another, small ones together in the buffer, which is used again."""
    room = len(buffer)
    ends = np.cumsum(lengths)
    first = done = 0
    while first < len(views):
        last = int(np.searchsorted(ends, done + room, side="right"))
        if last <= first:  # one that is larger than the buffer
            yield views[first]
            last = first + 1
        else:
            size = int(ends[last - 1]) - done
            np.concatenate(views[first:last], out=buffer[:size])
            yield buffer[:size]
        first, done = last, int(ends[last - 1])


def check_block(checked: Checked, number: int, data: memoryview | bytes) -> bool:
    """Whether the bytes of a block are those that were written; true where there is no checksum to compare with."""
    return number >= len(checked.sums) or xxhash.xxh3_128_hexdigest(data) == checked.sums[number]


def damaged_block(checked: Checked, number: int) -> StoreError:
    """Return the error for a block that is not what was written, after it was read twice."""
    named = f" of shard {checked.shard}" if checked.shard else ""
    return StoreError(
        f"block {number} of `{checked.file.path}`{named} is damaged: it does not have the checksum it was written with",
        where=f"{checked.file.url}, bytes from {number * BLOCK_BYTES}",
        hint="delete this file and run again: what made it runs anew",
    )
