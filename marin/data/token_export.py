"""Token shards to the files of other tools.

`megatron`: `tokens.bin` and `tokens.idx`; `mds`: `tokens.mds`, a sample a document; beside both `tokens.index.arrow`,
from which documents' ids, sources and loss masks come back. `parquet`: `tokens.parquet`, a row a document. Invariant: a
shard that was exported and imported has the bytes that it had; so have Megatron's and MDS files with a sequence a
document and nothing but ids. Loss masks are in Parquet and in the index beside the others, whose own readers train on
every token.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from marin import fs
from marin.base.errors import DataError
from marin.base.json import Json
from marin.data import mds
from marin.data.arrays import TokenArray, open_array
from marin.data.megatron import MegatronIndex, encode_index
from marin.data.token_files import INDEX, LOSS, TOKENS, read_index
from marin.graph.files import Output, Shard

Format = Literal["megatron", "parquet", "mds"]

BIN, IDX, MDS = "tokens.bin", "tokens.idx", "tokens.mds"
SIDECAR, TABLE = "tokens.index.arrow", "tokens.parquet"
COPY_TOKENS = 2**22
TABLE_SCHEMA = pa.schema(
    [
        ("id", pa.binary(16)),
        ("source", pa.large_string()),
        ("row", pa.uint64()),
        ("tokens", pa.large_list(pa.uint32())),
    ]
)
"""Of `tokens.parquet`, and `loss` where the tokens have it; ids are as wide as in the shard."""


def export_shard(shard: Shard, output: Output, *, format: Format, dtype: Literal["uint16", "int32"] | None) -> Json:
    """Write a token shard in another format; returns its documents and tokens.

    `dtype` is that of the ids outside Parquet; None: as in the shard, int32 for uint32. DataError for ids that do not
    fit it, and for shards beyond what the format counts.
    """
    array, index = open_array(shard.file(TOKENS)), read_index(shard.file(INDEX))
    lengths = np.diff(index["end"].to_numpy().astype(np.int64), prepend=0)
    if format == "parquet":
        _write_table(output, array, index, lengths)
    else:
        (_write_mds if format == "mds" else _write_megatron)(
            output, array, lengths, _exported_dtype(array.dtype, dtype)
        )
        with fs.open_file(shard.file(INDEX)) as source:
            output.write(SIDECAR, source.read())
    return {"documents": len(lengths), "tokens": int(lengths.sum())}


def _write_megatron(output: Output, array: TokenArray, lengths: np.ndarray, dtype: np.dtype) -> None:
    with output.open(BIN) as file:
        for start in range(0, array.shape[0], COPY_TOKENS):
            part = _as_type(array.read(start, min(start + COPY_TOKENS, array.shape[0])), dtype)
            file.write(part.data.cast("B"))
    output.write(IDX, encode_index(MegatronIndex(dtype, lengths)))


def _write_mds(output: Output, array: TokenArray, lengths: np.ndarray, dtype: np.dtype) -> None:
    with output.open(MDS) as file:
        file.write(mds.encode_head(lengths, dtype))
        for begin, ends in _runs_of_documents(lengths):
            ids = _as_type(array.read(begin, int(ends[-1])), dtype)
            file.write(mds.encode_samples(np.split(ids, (ends - begin)[:-1])))


def _exported_dtype(stored: np.dtype, asked: str | None) -> np.dtype:
    """Return the type of exported ids."""
    return np.dtype("<u2" if (asked or stored.name) == "uint16" else "<i4")


def mds_index(shards: Sequence[Shard], stored: str, asked: str | None) -> bytes:
    """Return the `index.json` of exported shards as they are published: `shards/00000/tokens.mds` and so on."""
    rows = []
    for number, shard in enumerate(shards):
        counted: Any = shard.value
        rows.append((f"shards/{number:05}/{MDS}", shard.file(MDS).size, counted["documents"]))
    return mds.encode_index(rows, _exported_dtype(np.dtype(stored), asked))


def _as_type(ids: np.ndarray, wanted: np.dtype) -> np.ndarray:
    """Return ids in another type, contiguous; DataError where one does not fit."""
    if ids.dtype.itemsize > wanted.itemsize and ids.size and int(ids.max()) > np.iinfo(wanted).max:
        raise DataError(
            f"id {int(ids.max())} does not fit {wanted.name} (id_too_large)",
            where="dtype",
            hint='give dtype="int32", or leave it out',
        )
    return np.ascontiguousarray(ids.astype(wanted, copy=False))


def _runs_of_documents(lengths: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Yield where a run of documents of about COPY_TOKENS begins, and where each of them ends."""
    ends, first = np.cumsum(lengths), 0
    while first < len(ends):
        begin = int(ends[first - 1]) if first else 0
        last = max(first + 1, int(np.searchsorted(ends, begin + COPY_TOKENS, side="right")))
        yield begin, ends[first:last]
        first = last


def _write_table(output: Output, array: TokenArray, index: pa.Table, lengths: np.ndarray) -> None:
    ids = pa.field("tokens", pa.large_list(pa.from_numpy_dtype(array.dtype)))
    schema = TABLE_SCHEMA.set(TABLE_SCHEMA.names.index("tokens"), ids)
    if LOSS.name in index.column_names:
        schema = schema.append(LOSS)
    with (
        output.open(TABLE) as file,
        parquet.ParquetWriter(file, schema, compression="zstd", write_statistics=False) as writer,
    ):
        first = 0
        for begin, ends in _runs_of_documents(lengths):
            part = index.slice(first, len(ends)).combine_chunks()
            offsets = np.concatenate([[begin], ends]) - begin
            tokens = pa.LargeListArray.from_arrays(offsets, pa.array(array.read(begin, int(ends[-1]))))
            columns = [one(part["id"]), strings(part["source"]), one(part["row"]), tokens]
            if LOSS.name in schema.names:
                columns.append(one(part[LOSS.name]))
            writer.write_table(pa.Table.from_arrays(columns, schema=schema), row_group_size=len(ends))
            first += len(ends)


def one(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array."""
    return pa.concat_arrays([pa.array([], column.type), *column.chunks])


def strings(column: pa.ChunkedArray) -> pa.Array:
    """Return a column of texts as one array."""
    return one(column.cast(pa.large_string()))
