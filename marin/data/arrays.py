"""Read `.npy` files by ranges of rows: memory-mapped where they are local, by cached blocks where they are not.

Invariant: a file whose size is not what its header says is refused. What the numbers mean is not known here.
"""

import io
import math
from collections import OrderedDict
from threading import Lock
from typing import Any, Protocol

import numpy as np
from numpy.lib import format as npy

from marin import fs
from marin.base.errors import DataError
from marin.graph.files import FileRef

HEADER_BYTES = 4096
BLOCK_BYTES = 8 * 2**20
CACHED_BLOCKS = 16

Array = np.ndarray[Any, np.dtype[Any]]  # Any: shape and dtype are read from files
DType = np.dtype[Any]


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


def open_array(file: FileRef) -> TokenArray:
    """Open a `.npy` file: memory-mapped and checked where it is local, else by cached 8 MiB ranges. Thread-safe."""
    path = fs.local_path(file.url)
    if path is None:
        return _RemoteArray(file)
    fs.check_file(file)
    shape, dtype, offset = _header(fs.read_range(file.url, 0, min(file.size, HEADER_BYTES)), file)
    if not math.prod(shape):
        return _LocalArray(np.empty(shape, dtype))
    mapped = np.memmap(path, dtype=dtype, mode="r", offset=offset, shape=shape)
    return _LocalArray(np.asarray(mapped))  # without memmap's costly slicing


class _LocalArray:
    """A memory-mapped file."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array
        self.shape: tuple[int, ...] = array.shape
        self.dtype = array.dtype

    def read(self, start: int, stop: int) -> np.ndarray:
        part: np.ndarray = self._array[start:stop]
        return part

    def take(self, rows: np.ndarray) -> np.ndarray:
        taken: np.ndarray = self._array[rows]
        return taken


class _RemoteArray:
    """Keeps the last blocks that were used; a training run reads mostly in order."""

    def __init__(self, file: FileRef) -> None:
        self._file = file
        self._lock = Lock()
        self._blocks: OrderedDict[int, bytes] = OrderedDict()
        head = fs.read_range(file.url, 0, min(file.size, HEADER_BYTES))
        self.shape, self.dtype, self._offset = _header(head, file)
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

    def _bytes(self, start: int, stop: int) -> bytes:
        parts = []
        for number in range(start // BLOCK_BYTES, (stop + BLOCK_BYTES - 1) // BLOCK_BYTES):
            begin = number * BLOCK_BYTES
            parts.append(self._block(number)[max(0, start - begin) : stop - begin])
        return b"".join(parts)

    def _block(self, number: int) -> bytes:
        with self._lock:
            if number not in self._blocks:
                begin = number * BLOCK_BYTES
                length = min(BLOCK_BYTES, self._file.size - begin)
                self._blocks[number] = fs.read_range(self._file.url, begin, length)
                if len(self._blocks) > CACHED_BLOCKS:
                    self._blocks.popitem(last=False)
            self._blocks.move_to_end(number)
            return self._blocks[number]


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
