"""The files of other tools to token shards; `marin.data.token_export` says what an export leaves.

Invariant: a shard that was exported and imported has the bytes that it had. Files of other tools are cut into pieces by
their own content alone; documents without an id of their own are named by file and number.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from pyarrow import parquet
from tokenizers import Tokenizer

from marin import fs
from marin.base.errors import DataError, InputError
from marin.base.json import Json
from marin.data import mds
from marin.data.counts import Counts
from marin.data.hashes import bundle
from marin.data.megatron import decode_index
from marin.data.source_counts import count_sources
from marin.data.token_export import TABLE_SCHEMA, Format, one, strings
from marin.data.token_files import (
    LOSS,
    DocumentColumns,
    bytes_of,
    read_index,
    read_loss,
    token_dtype,
    write_tokens,
)
from marin.data.token_text import token_bytes
from marin.data.tokenizer import load_tokenizer, num_ids, special_id
from marin.graph.files import FileRef, Output, Shard

OnMissingEos = Literal["fail", "append"]

PIECE_TOKENS = 2**26
"""Tokens of a foreign file that make a shard, about."""


def plan_import(files: Sequence[FileRef], *, format: Format, piece_tokens: int = PIECE_TOKENS) -> list[Shard]:
    """Return the inputs of `import_shard`: Megatron's pairs and MDS files by name, cut into pieces; Parquet one by one.

    Pieces depend on each file alone. InputError when there is none, one of a pair is missing, or MDS is compressed.
    """
    if format == "parquet":
        tables = [bundle([file]) for file in files if file.path.endswith(".parquet")]
        if not tables:
            raise InputError("there is no .parquet file", hint="check the pattern")
        return tables
    by_path = {file.path: file for file in files}
    if format == "mds":
        return [piece for each in _mds_files(by_path) for piece in _mds_pieces(each, piece_tokens)]
    pairs = []
    for path in sorted(path for path in by_path if path.endswith((".bin", ".idx"))):
        stem, other = path[:-4], {".bin": ".idx", ".idx": ".bin"}[path[-4:]]
        if stem + other not in by_path:
            raise InputError(f"`{path}` has no `{stem}{other}` beside it", where=path, hint="give both files")
        if path.endswith(".bin"):
            beside = [by_path[stem + ".index.arrow"]] if stem + ".index.arrow" in by_path else []
            pairs.append([by_path[path], by_path[stem + ".idx"], *beside])
    if not pairs:
        raise InputError("there is no pair of .bin and .idx", hint="check the pattern")
    return [piece for pair in pairs for piece in _pieces(pair, piece_tokens)]


def import_shard(
    shard: Shard, output: Output, *, tokenizer: FileRef, eos: str, on_missing_eos: OnMissingEos, format: Format
) -> Json:
    """Write a piece of foreign files as `tokens.npy` and `index.arrow`; returns counts that balance.

    Documents without a token are dropped. DataError for an id beyond the tokenizer, and for a document that does not
    end with `eos` unless one is to be appended.
    """
    vocabulary = _vocabulary(tokenizer, eos)
    result = Counts()
    if format == "parquet":
        ids, documents = _read_table(shard)
    else:
        ids, documents = _read_mds(shard) if format == "mds" else _read_megatron(shard, result)
    if ids.size and (int(ids.min()) < 0 or int(ids.max()) >= vocabulary.num_ids):
        wrong = int(ids.max()) if int(ids.max()) >= vocabulary.num_ids else int(ids.min())
        raise DataError(
            f"id {wrong} is not one of the tokenizer's {vocabulary.num_ids} (id_beyond_vocabulary)",
            where=shard.files[0].path,
            hint="give the tokenizer that made these files",
        )
    kept = _kept(ids, documents, vocabulary, on_missing_eos, result, shard.files[0].path)
    dtype = token_dtype(vocabulary.num_ids)
    num_tokens = write_tokens(output, [part.astype(dtype) for part in kept.parts], dtype, kept.columns)
    counted = count_sources(kept.columns.sources, kept.columns.lengths)
    return {**result.record(), **counted, "tokens": num_tokens}


class _Vocabulary(NamedTuple):
    num_ids: int
    eos_id: int
    num_bytes: np.ndarray
    """Bytes of text that each id stands for, int64 [num_ids]."""


class _Kept(NamedTuple):
    parts: list[np.ndarray]
    columns: DocumentColumns


@lru_cache(maxsize=2)
def _vocabulary(file: FileRef, eos: str) -> _Vocabulary:
    tokenizer = load_tokenizer(fs.read_file(file))
    return _Vocabulary(num_ids(tokenizer), special_id(tokenizer, eos), _num_bytes(tokenizer))


def _num_bytes(tokenizer: Tokenizer) -> np.ndarray:
    """Return the bytes of each id's text; special tokens stand for none."""
    sizes = np.zeros(num_ids(tokenizer), np.int64)
    for number, text in token_bytes(tokenizer).items():
        sizes[number] = len(text)
    for number, token in tokenizer.get_added_tokens_decoder().items():
        if token.special:
            sizes[number] = 0
    return sizes


def _pieces(pair: Sequence[FileRef], piece_tokens: int) -> Iterator[Shard]:
    index = decode_index(fs.read_file(pair[1]), bin_bytes=pair[0].size, where=pair[1].url)
    ends = np.cumsum(index.lengths)
    first = 0
    while first < len(ends):
        begin = int(ends[first - 1]) if first else 0
        last = max(first + 1, int(np.searchsorted(ends, begin + piece_tokens, side="right")))
        yield bundle(pair, {"first": first, "last": last})
        first = last
    if not len(ends):
        yield bundle(pair, {"first": 0, "last": 0})


def _read_megatron(shard: Shard, result: Counts) -> tuple[np.ndarray, DocumentColumns]:
    value: Any = shard.value
    first, last, (data, idx, *beside) = value["first"], value["last"], shard.files
    index = decode_index(fs.read_file(idx), bin_bytes=data.size, where=idx.url)
    if index.joined and not first:
        result.notes["joined_sequences"] += index.joined
    starts = np.concatenate([[0], np.cumsum(index.lengths)]) * index.dtype.itemsize
    begin, end = int(starts[first]), int(starts[last])
    ids = np.frombuffer(fs.read_range(data.url, begin, end - begin), index.dtype)
    return ids, _documents(data, index.lengths[first:last], ids, (first, last), beside)


def _documents(
    data: FileRef, lengths: np.ndarray, ids: np.ndarray, rows: tuple[int, int], beside: Sequence[FileRef]
) -> DocumentColumns:
    """Return what the index beside a file says of its documents `rows`; without one, names of file and number."""
    if not beside:
        names = [f"{data.path}:{number}" for number in range(*rows)]
        return DocumentColumns(lengths, _ids_of(ids, lengths, names), _constant(data.path, len(lengths)))
    table = read_index(beside[0])
    known = np.diff(table["end"].to_numpy().astype(np.int64), prepend=0)[slice(*rows)]
    if not np.array_equal(known, lengths):
        raise DataError(
            f"`{beside[0].path}` is of other documents than `{data.path}` (damaged_index)",
            where=beside[0].url,
            hint="delete it, or give all files as they were exported",
        )
    return _columns(lengths, table.slice(rows[0], rows[1] - rows[0]).combine_chunks(), beside[0])


def _mds_files(by_path: Mapping[str, FileRef]) -> list[list[FileRef]]:
    """Return the MDS files by name, each with the index beside it; InputError where there is none to read."""
    packed = next((path for path in sorted(by_path) if ".mds." in path.rsplit("/", 1)[-1]), None)
    if packed is not None:
        raise InputError(
            f"`{packed}` is compressed", where=packed, hint="decompress it first: `zstd -d --rm *.mds.zstd`"
        )
    found = [path for path in sorted(by_path) if path.endswith(".mds")]
    if not found:
        raise InputError("there is no .mds file", hint="check the pattern")
    beside = {path: path.removesuffix(".mds") + ".index.arrow" for path in found}
    return [[by_path[path], *([by_path[beside[path]]] if beside[path] in by_path else [])] for path in found]


def _mds_head(data: FileRef) -> mds.MdsHead:
    size = mds.head_bytes(fs.read_range(data.url, 0, mds.PREFIX_BYTES))
    return mds.decode_head(fs.read_range(data.url, 0, size), file_bytes=data.size, where=data.url)


def _mds_pieces(files: Sequence[FileRef], piece_tokens: int) -> Iterator[Shard]:
    offsets = _mds_head(files[0]).offsets
    first, number = 0, len(offsets) - 1
    while first < number:
        last = int(np.searchsorted(offsets, int(offsets[first]) + 5 * piece_tokens, side="right")) - 1
        last = max(first + 1, last)
        yield bundle(files, {"first": first, "last": last})
        first = last
    if not number:
        yield bundle(files, {"first": 0, "last": 0})


def _read_mds(shard: Shard) -> tuple[np.ndarray, DocumentColumns]:
    value: Any = shard.value
    rows, (data, *beside) = (value["first"], value["last"]), shard.files
    head = _mds_head(data)
    begin, end = int(head.offsets[rows[0]]), int(head.offsets[rows[1]])
    samples = list(mds.decode_samples(head, fs.read_range(data.url, begin, end - begin), rows[0], where=data.url))
    lengths = np.array([len(ids) for ids in samples], np.int64)
    joined = np.concatenate(samples) if samples else np.array([], np.uint32)
    return joined, _documents(data, lengths, joined, rows, beside)


def _columns(lengths: np.ndarray, table: pa.Table, file: FileRef) -> DocumentColumns:
    """Return what a table with the columns of an index says of its documents; DataError for masks of other lengths."""
    rows = table["row"].to_numpy().astype(np.int64)
    if LOSS.name in table.column_names and table.schema.field(LOSS.name).type != LOSS.type:
        raise DataError(
            f"column `{LOSS.name}` of `{file.path}` is {table.schema.field(LOSS.name).type} (not_loss)",
            where=file.url,
            hint="write lists of uint32, as ExportTokens does, or leave the column out",
        )
    loss = read_loss(table)
    for row, runs in enumerate(loss or ()):
        if int(runs.sum()) != lengths[row]:
            raise DataError(
                f"document {row} of `{file.path}` has {lengths[row]} tokens, a mask of {int(runs.sum())} (not_loss)",
                where=file.url,
                hint="runs without and with loss, in turn, must sum to the document's tokens",
            )
    return DocumentColumns(lengths, bytes_of(table["id"]), strings(table["source"]), loss, rows)


def _read_table(shard: Shard) -> tuple[np.ndarray, DocumentColumns]:
    with fs.open_file(shard.files[0]) as file, parquet.ParquetFile(file, pre_buffer=False) as source:
        table = source.read(use_threads=False).combine_chunks()
    name = next((name for name in ("tokens", "input_ids") if name in table.column_names), None)
    if name is None:
        raise DataError(
            f"`{shard.files[0].path}` has no column `tokens` or `input_ids`; it has {', '.join(table.column_names)}",
            where=shard.files[0].url,
            hint="rename the column of ids",
        )
    column = one(table[name])
    is_list = pa.types.is_list(column.type) or pa.types.is_large_list(column.type)
    values = column.flatten() if is_list else column
    if not is_list or not pa.types.is_integer(values.type) or values.null_count:
        raise DataError(
            f"column `{name}` of `{shard.files[0].path}` is {column.type}, not lists of ids (not_ids)",
            where=shard.files[0].url,
            hint="write a list of whole numbers a row, none of them null",
        )
    ids = values.to_numpy(zero_copy_only=False)
    lengths = pc.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    if all(TABLE_SCHEMA.field(own) in list(table.schema) for own in ("id", "source", "row")):
        return ids, _columns(lengths, table, shard.files[0])
    names = [f"{shard.files[0].path}:{number}" for number in range(len(lengths))]
    sources = _constant(shard.files[0].path, len(lengths))
    return ids, DocumentColumns(lengths, _ids_of(ids, lengths, names), sources)


def _kept(
    ids: np.ndarray,
    documents: DocumentColumns,
    vocabulary: _Vocabulary,
    policy: OnMissingEos,
    result: Counts,
    path: str,
) -> _Kept:
    ends = np.cumsum(documents.lengths)
    rows = np.flatnonzero(documents.lengths > 0)
    if len(rows) < len(ends):
        result.dropped["empty"] += len(ends) - len(rows)
    lacking = rows[ids[ends[rows] - 1] != vocabulary.eos_id]
    if len(lacking) and policy == "fail":
        raise DataError(
            f"document {int(lacking[0])} of this piece does not end with the end-of-text token, like {len(lacking)} of "
            f"{len(rows)} (missing_eos)",
            where=path,
            hint='give on_missing_eos="append"',
        )
    result.documents_out += len(rows)
    result.bytes += int(vocabulary.num_bytes[ids].sum())
    if len(lacking):
        result.notes["eos_appended"] += len(lacking)
    if not len(lacking) and len(rows) == len(ends):
        return _Kept([ids], documents)
    add = np.zeros(len(ends), np.int64)
    add[lacking] = 1
    eos = np.array([vocabulary.eos_id], ids.dtype)
    parts = []
    for row in rows.tolist():
        parts.append(ids[ends[row] - documents.lengths[row] : ends[row]])
        if add[row]:
            parts.append(eos)
    loss = None
    if documents.loss is not None:
        loss = [_without_loss(documents.loss[row], int(add[row])) for row in rows.tolist()]
    sources = documents.sources.take(pa.array(rows))
    known = None if documents.rows is None else documents.rows[rows]
    return _Kept(parts, DocumentColumns((documents.lengths + add)[rows], documents.ids[rows], sources, loss, known))


def _without_loss(runs: np.ndarray, more: int) -> np.ndarray:
    """Return the runs of a mask with that many tokens after it that are no targets."""
    if not more:
        return runs
    if len(runs) % 2:
        return np.append(runs[:-1], runs[-1:] + np.uint32(more))
    return np.append(runs, np.uint32(more))


def _ids_of(ids: np.ndarray, lengths: np.ndarray, names: Sequence[str]) -> np.ndarray:
    """Return 16 bytes of content and name for each document, uint8 [N, 16], whatever type the ids were stored in."""
    found, begin = bytearray(), 0
    for name, length in zip(names, lengths.tolist(), strict=True):
        state = xxhash.xxh3_128(length.to_bytes(8, "little"))
        state.update(ids[begin : begin + length].astype("<u4").tobytes())
        state.update(name.encode())
        found += state.digest()
        begin += length
    return np.frombuffer(bytes(found), np.uint8).reshape(-1, 16)


def _constant(text: str, number: int) -> pa.Array:
    return pa.array([text] * number, pa.large_string())
