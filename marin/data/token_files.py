"""Token ids on disk: a flat little-endian array in `tokens.npy`, and `index.arrow` beside it.

The `.npy` header is padded to 64 bytes, so that the array can be memory-mapped and read by ranges. Invariant: both
files are a function of their content. The index says where documents end; an end-of-text token is never looked for.
"""

import math
import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

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

LOSS = pa.field("loss", pa.large_list(pa.uint32()))
"""An optional last column of the index: which tokens of the document are targets, as `loss_runs`. Absent: all are."""


class DocumentColumns(NamedTuple):
    """What an index says of N documents: `lengths` int64 [N], `ids` uint8 [N, 16], `sources` strings [N]."""

    lengths: np.ndarray
    ids: np.ndarray
    sources: pa.Array
    loss: Sequence[np.ndarray] | None = None
    """`loss_runs` of each document; None: every token is a target."""
    rows: np.ndarray | None = None
    """Row of each in the Documents shard, [N]; None: none of those was left out."""


def write_tokens(output: Output, parts: Iterable[np.ndarray], dtype: np.dtype, documents: DocumentColumns) -> int:
    """Write a token shard: ids of the documents one after another, and their index; returns the number of tokens."""
    num_tokens = int(documents.lengths.sum())
    write_array(output, TOKENS, parts, (num_tokens,), dtype)
    write_document_index(output, documents)
    return num_tokens


def write_document_index(output: Output, documents: DocumentColumns) -> None:
    """Write the index of documents that stand one after another."""
    ends = np.cumsum(documents.lengths).astype(np.uint64)
    columns = [
        pa.array(ends),
        fixed_bytes(documents.ids),
        documents.sources.dictionary_encode(),
        pa.array(np.arange(len(ends)) if documents.rows is None else documents.rows, pa.uint64()),
    ]
    schema = INDEX_SCHEMA
    if documents.loss is not None:
        columns.append(loss_column(documents.loss))
        schema = schema.append(LOSS)
    write_index(output, pa.Table.from_arrays(columns, schema=schema), [len(ends)])


def loss_column(loss: Sequence[np.ndarray]) -> pa.Array:
    """Return `loss_runs` as a column of the type of `LOSS`."""
    runs = np.concatenate([np.empty(0, np.uint32), *loss])
    borders = np.cumsum([0, *map(len, loss)])
    return pa.LargeListArray.from_arrays(pa.array(borders, pa.int64()), pa.array(runs, pa.uint32()))


def loss_runs(is_target: np.ndarray) -> np.ndarray:
    """Return a mask, bool [T], as uint32 run lengths in turn: without loss (0 if there are none at the start), with it.

    The runs sum to T. A target is the token itself, wherever it stands: the prediction that is scored is the one
    made at the token before it.
    """
    borders = np.flatnonzero(np.diff(is_target, prepend=False))
    runs = np.diff(borders, prepend=0, append=len(is_target))
    return np.asarray(runs, dtype=np.uint32)


def loss_mask(runs: np.ndarray) -> np.ndarray:
    """Return the mask, bool [T], of `loss_runs`."""
    return np.repeat(np.arange(len(runs)) % 2 == 1, runs)


def all_targets(lengths: np.ndarray) -> list[np.ndarray]:
    """Return `loss_runs` of documents of these lengths whose tokens are all targets."""
    return list(np.stack([np.zeros_like(lengths), lengths], axis=1).astype(np.uint32))


def read_loss(index: pa.Table) -> list[np.ndarray] | None:
    """Return `loss_runs` of each document of an index; None where every token is a target."""
    if LOSS.name not in index.column_names:
        return None
    column = index[LOSS.name].combine_chunks()
    runs = column.values.to_numpy(zero_copy_only=False).astype(np.uint32)
    bounds = column.offsets.to_numpy(zero_copy_only=False).tolist()
    return [runs[begin:end] for begin, end in pairwise(bounds)]


def token_dtype(num_ids: int) -> np.dtype[np.unsignedinteger]:
    """Return uint16 when all ids below `num_ids` fit, otherwise uint32; little-endian."""
    return np.dtype("<u2") if num_ids <= 2**16 else np.dtype("<u4")


def array_header(shape: Sequence[int], dtype: np.dtype) -> bytes:
    """Return the head of a `.npy` file, padded to a multiple of 64 bytes; a function of shape and type alone."""
    head = f"{{'descr': {dtype.str!r}, 'fortran_order': False, 'shape': {tuple(shape)!r}, }}"
    size = math.ceil((10 + len(head) + 1) / 64) * 64
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", size - 10) + head.ljust(size - 11).encode() + b"\n"


def write_array(output: Output, path: str, parts: Iterable[np.ndarray], shape: Sequence[int], dtype: np.dtype) -> None:
    """Write consecutive parts of one C-ordered array of `shape`; the header is the same whatever numpy's version."""
    written = 0
    with output.open(path) as file:
        file.write(array_header(shape, dtype))
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


def write_index(output: Output, table: pa.Table, cuts: Sequence[int], *, path: str = INDEX) -> None:
    """Write an index as record batches that end at `cuts`, so that each can be read alone; the last cut is the end."""
    batch = table.combine_chunks().to_batches()[0] if table.num_rows else _empty_batch(table.schema)
    with output.open(path) as file, pa.ipc.new_file(file, table.schema) as writer:
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
