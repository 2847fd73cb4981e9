"""Read `.npy` files by ranges of rows: memory-mapped where they are local, by cached blocks where they are not.

Invariants: a file whose size is not what its header says is refused; what has checksums is compared with them before
it is used, block by block as it is reached; a local file without them is compared whole, with its digest, when it is
opened. What the numbers mean is not known here.
"""

import io
import math
from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from typing import Any, Protocol

import numpy as np
from blake3 import blake3
from numpy.lib import format as npy

from marin import fs
from marin.base.errors import DataError
from marin.data import blocks
from marin.data.block_cache import BlockCache
from marin.data.blocks import Checked, check_block, damaged_block
from marin.graph.files import FileRef

HEADER_BYTES = 4096

Array = np.ndarray[Any, np.dtype[Any]]  # Any: shape and dtype are read from files


class TokenArray(Protocol):
    """A `.npy` file that is read by ranges along its first axis."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> np.dtype: ...

    def read(self, start: int, stop: int) -> np.ndarray:
        """Return rows [start, stop)."""

    def take(self, rows: np.ndarray) -> np.ndarray:
        """Return the given rows, in that order."""

    def spans(self, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Return `lengths` rows from each of `starts`, int64 [S] both, one span after another."""

    def prefetch(self, starts: np.ndarray, lengths: np.ndarray | int = 1) -> None:
        """Say that these spans will be read soon; returns at once."""


def ragged(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return `starts[s]`, `starts[s] + 1`, ... `lengths[s]` numbers for each s, one after another; int64."""
    ends = np.cumsum(lengths)
    return np.repeat(starts - (ends - lengths), lengths) + np.arange(ends[-1] if len(ends) else 0)


def open_array(
    file: FileRef, *, sums: Sequence[str] = (), shard: str = "", cache: BlockCache | None = None
) -> TokenArray:
    """Open a `.npy` file: memory-mapped where it is local, else by 8 MiB blocks. Thread-safe.

    `sums` are the checksums of its blocks, `shard` what errors call the shard, `cache` what keeps remote blocks: one
    for all files of a data set; a file opened alone has a small one. Raises StoreError for what is damaged, DataError
    for what is no array.
    """
    checked = Checked(file, sums, shard)
    path = fs.local_path(file.url)
    if path is None:
        return _RemoteArray(checked, cache or BlockCache())
    mapped = map_file(file, path)
    if not sums and blake3(mapped.data).hexdigest() != file.digest:
        fs.check_file(file)  # reads it once more, and says what is wrong
    shape, dtype, offset = _header(mapped[:HEADER_BYTES].tobytes(), file)
    if not math.prod(shape):
        return _LocalArray(np.empty(shape, dtype), None)
    array = mapped[offset:].view(dtype).reshape(shape)
    return _LocalArray(array, _BlockCheck(checked, mapped, offset) if sums else None)


def read_array(file: FileRef) -> np.ndarray:
    """Return the whole array of a `.npy` file, mapped where it is local; StoreError when its digest is another."""
    path = fs.local_path(file.url)
    if path is None:
        data = np.frombuffer(fs.read_file(file), np.uint8)
    else:
        data = map_file(file, path)
        if blake3(data.data).hexdigest() != file.digest:
            fs.check_file(file)  # reads it once more, and says what is wrong
    shape, dtype, offset = _header(data[:HEADER_BYTES].tobytes(), file)
    array: np.ndarray = data[offset:].view(dtype).reshape(shape)
    return array


def map_file(file: FileRef, path: Path) -> np.ndarray:
    """Return a local file's bytes, uint8 [size], mapped, not checked; StoreError when it is shorter than recorded."""
    if not file.size:
        return np.empty(0, np.uint8)
    try:
        # Not np.memmap itself: its slices cost a microsecond each.
        return np.asarray(np.memmap(path, dtype=np.uint8, mode="r", shape=(file.size,)))
    except (OSError, ValueError):
        fs.check_file(file)  # says what is wrong
        raise


class _BlockCheck:
    """Compares the blocks of a mapped file with their checksums, each once."""

    def __init__(self, checked: Checked, mapped: np.ndarray, offset: int) -> None:
        self._checked = checked
        self._mapped = mapped
        self._offset = offset
        self._lock = Lock()
        self._pending = np.ones(-(-checked.file.size // blocks.BLOCK_BYTES), dtype=np.bool_)
        self.done = False

    def reach(self, first: np.ndarray, last: np.ndarray) -> None:
        """Check the blocks of the data's bytes `first` to `last`, inclusive, one range an item."""
        low, high = (first + self._offset) // blocks.BLOCK_BYTES, (last + self._offset) // blocks.BLOCK_BYTES
        touched = np.zeros(len(self._pending) + 1, dtype=np.int64)
        np.add.at(touched, low, 1)
        np.subtract.at(touched, high + 1, 1)
        wanted = np.flatnonzero((np.cumsum(touched[:-1]) > 0) & self._pending)
        if not len(wanted):
            return
        with self._lock:
            for number in wanted.tolist():
                begin, length = self._checked.block_range(number)
                if not check_block(self._checked, number, self._mapped[begin : begin + length].data):
                    again = fs.read_range(self._checked.file.url, begin, length)
                    if not check_block(self._checked, number, again):
                        raise damaged_block(self._checked, number)
                self._pending[number] = False
            self.done = not self._pending.any()


class _LocalArray:
    """A memory-mapped file."""

    def __init__(self, array: np.ndarray, check: _BlockCheck | None) -> None:
        self._array = array
        self._check = check
        self.shape: tuple[int, ...] = array.shape
        self.dtype = array.dtype
        self._row_bytes = array.dtype.itemsize * math.prod(array.shape[1:])

    def read(self, start: int, stop: int) -> np.ndarray:
        stop = max(start, min(stop, self.shape[0]))
        if self._check is not None and not self._check.done and stop > start:
            self._check.reach(np.array([start * self._row_bytes]), np.array([stop * self._row_bytes - 1]))
        part: np.ndarray = self._array[start:stop]
        return part

    def take(self, rows: np.ndarray) -> np.ndarray:
        if self._check is not None and not self._check.done and len(rows):
            self._check.reach(rows * self._row_bytes, (rows + 1) * self._row_bytes - 1)
        taken: np.ndarray = self._array[rows]
        return taken

    def spans(self, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        if self._check is not None and not self._check.done and len(starts):
            self._check.reach(starts * self._row_bytes, (starts + lengths) * self._row_bytes - 1)
        taken: np.ndarray = self._array[ragged(starts, lengths)]
        return taken

    def prefetch(self, starts: np.ndarray, lengths: np.ndarray | int = 1) -> None:
        """Nothing: the system reads ahead by itself."""


class _RemoteArray:
    """A file that is read by blocks."""

    def __init__(self, checked: Checked, cache: BlockCache) -> None:
        self._checked = checked
        self._cache = cache
        file = checked.file
        self.shape, self.dtype, self._offset = _header(bytes(self._bytes(0, min(file.size, HEADER_BYTES))), file)
        self._row_bytes = self.dtype.itemsize * math.prod(self.shape[1:])

    def read(self, start: int, stop: int) -> np.ndarray:
        stop = max(start, min(stop, self.shape[0]))
        data = self._bytes(self._offset + start * self._row_bytes, self._offset + stop * self._row_bytes)
        return np.frombuffer(data, self.dtype).reshape(stop - start, *self.shape[1:])

    def take(self, rows: np.ndarray) -> np.ndarray:
        result = np.empty((len(rows), *self.shape[1:]), self.dtype)
        for at, row in enumerate(rows.tolist()):
            result[at] = self.read(row, row + 1)[0]
        return result

    def spans(self, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        bounds = zip(starts.tolist(), (starts + lengths).tolist(), strict=True)
        parts = [self.read(start, stop) for start, stop in bounds]
        return np.concatenate([np.empty((0, *self.shape[1:]), self.dtype), *parts])

    def prefetch(self, starts: np.ndarray, lengths: np.ndarray | int = 1) -> None:
        first = (self._offset + starts * self._row_bytes) // blocks.BLOCK_BYTES
        last = (self._offset + (starts + lengths) * self._row_bytes - 1) // blocks.BLOCK_BYTES
        # In the order in which they are wanted, each once.
        numbers = dict.fromkeys(np.stack([first, last], axis=1).ravel().tolist())
        self._cache.prefetch(self._checked, numbers)

    def _bytes(self, start: int, stop: int) -> bytes | bytearray:
        if stop <= start:
            return b""
        numbers = range(start // blocks.BLOCK_BYTES, (stop - 1) // blocks.BLOCK_BYTES + 1)
        if len(numbers) == 1:
            begin = numbers[0] * blocks.BLOCK_BYTES
            return self._cache.block(self._checked, numbers[0])[start - begin : stop - begin]
        if len(numbers) > 2:
            self._cache.prefetch(self._checked, numbers)
        whole = bytearray()
        for number in numbers:
            begin = number * blocks.BLOCK_BYTES
            whole += memoryview(self._cache.block(self._checked, number))[max(0, start - begin) : stop - begin]
        return whole


def _header(head: bytes, file: FileRef) -> tuple[tuple[int, ...], np.dtype, int]:
    """Return shape, dtype and the offset of the data; DataError when the file is no array or has another size."""
    stream = io.BytesIO(head)
    try:
        version = npy.read_magic(stream)
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, fortran, dtype = read(stream)
    except ValueError as error:
        raise DataError(f"`{file.path}` is no array: {error}", where=file.url, hint=_DAMAGED) from error
    expected = stream.tell() + math.prod(shape) * dtype.itemsize
    if fortran or expected != file.size:
        raise DataError(
            f"`{file.path}` has {file.size} bytes, its header says {expected}", where=file.url, hint=_DAMAGED
        )
    return shape, dtype, stream.tell()


_DAMAGED = "the file is damaged: delete it and run again: what made it runs anew"
