"""Token ids on disk: a flat little-endian array in `tokens.npy`, and `index.arrow` beside it.

The `.npy` header is padded to 64 bytes, so that the array can be memory-mapped and read by ranges. Invariant: both
files are a function of their content. The index says where documents end; an end-of-text token is never looked for.
"""

import math
import struct
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from marin import fs
from marin.graph.files import FileRef, Output

TOKENS = "tokens.npy"
INDEX = "index.arrow"

BLOCK_TOKENS = 2**21

INDEX_SCHEMA = pa.schema(
    [
        ("end", pa.uint64()),
        ("id", pa.binary(16)),
        ("source", pa.dictionary(pa.int32(), pa.large_string())),
        ("row", pa.uint64()),
    ]
)
"""A row a document, in order: where its ids end (its end-of-text token included), its 128-bit id, the file it came
from, its row in the Documents shard."""


def token_dtype(num_ids: int) -> np.dtype[np.unsignedinteger]:
    """Return uint16 when all ids below `num_ids` fit, otherwise uint32; little-endian."""
    return np.dtype("<u2") if num_ids <= 2**16 else np.dtype("<u4")


def write_array(output: Output, path: str, parts: Iterable[np.ndarray], shape: Sequence[int], dtype: np.dtype) -> None:
    """Write consecutive parts of one C-ordered array of `shape`; the header is the same whatever numpy's version."""
    head = f"{{'descr': {dtype.str!r}, 'fortran_order': False, 'shape': {tuple(shape)!r}, }}"
    size = math.ceil((10 + len(head) + 1) / 64) * 64
    written = 0
    with output.open(path) as file:
        file.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", size - 10) + head.ljust(size - 11).encode() + b"\n")
        for block in _blocks(parts):
            assert block.dtype == dtype
            file.write(block.data.cast("B"))
            written += block.size
    assert written == math.prod(shape)


def _blocks(parts: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    """Yield the parts flat, small ones joined: a hashed write a document would cost more than its bytes."""
    gathered: list[np.ndarray] = []
    size = 0
    for part in parts:
        gathered.append(part.ravel())
        size += part.size
        if size >= BLOCK_TOKENS:
            yield gathered[0] if len(gathered) == 1 else np.concatenate(gathered)
            gathered, size = [], 0
    if size:
        yield np.concatenate(gathered)


def write_index(output: Output, table: pa.Table, cuts: Sequence[int]) -> None:
    """Write an index as record batches that end at `cuts`, so that each can be read alone; the last cut is the end."""
    batch = table.combine_chunks().to_batches()[0] if table.num_rows else _empty_batch(table.schema)
    with output.open(INDEX) as file, pa.ipc.new_file(file, table.schema) as writer:
        start = 0
        for stop in cuts:
            writer.write_batch(batch.slice(start, stop - start))
            start = stop
    assert start == table.num_rows


def read_index(file: FileRef, first: int = 0, last: int | None = None) -> pa.Table:
    """Return the record batches [first, last) of an index as one table; None is the end."""
    with fs.open_file(file) as stream:
        reader = pa.ipc.open_file(stream, options=pa.ipc.IpcReadOptions(use_threads=False))  # as Table.to_arrow says
        stop = reader.num_record_batches if last is None else last
        return pa.Table.from_batches([reader.get_batch(number) for number in range(first, stop)], reader.schema)


def _empty_batch(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)


def fixed_bytes(ids: np.ndarray) -> pa.Array:
    """Return uint8 [N, 16] as an Arrow column of 16-byte values."""
    return pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(16), len(ids), [None, pa.py_buffer(np.ascontiguousarray(ids))]
    )


def bytes_of(column: pa.ChunkedArray) -> np.ndarray:
    """Return an Arrow column of 16-byte values as uint8 [N, 16]."""
    chunks = [
        np.frombuffer(chunk.buffers()[1], np.uint8)[chunk.offset * 16 : (chunk.offset + len(chunk)) * 16]
        for chunk in column.chunks
        if len(chunk)
    ]
    return np.concatenate([np.empty(0, np.uint8), *chunks]).reshape(-1, 16)
