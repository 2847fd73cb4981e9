"""A spill: the documents of a token shard, sorted by key and cut into partitions of the keys.

    tokens.npy      ids, one document after another
    documents.npy   a record a document: its id, its length, the number of its source, its number of loss runs
    sources.json    the sources' names
    sums.npy        a record a partition: checksums of its tokens, documents and loss runs, and how many documents
    loss.npy        loss runs, one document after another; only where the tokens have loss masks

Invariant: a reader of some partitions reads and checks those alone, so that the second pass of a shuffle reads each
spill once over all its final shards, however many there are.
"""

import json
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import xxhash

from marin import fs
from marin.base.errors import StoreError
from marin.base.json import Json, dumps
from marin.data.arrays import map_file
from marin.data.blocks import copy_buffer, joined, write_parts
from marin.data.pieces import Pieces, pieces_of
from marin.data.token_files import TOKENS, array_header
from marin.graph.files import FileRef, Output, Shard

DOCUMENTS, SOURCES, SUMS, LOSS_RUNS = "documents.npy", "sources.json", "sums.npy", "loss.npy"

WORDS = np.dtype("<u4")
RECORD_WORDS = 8
"""Of a document: four of its id, two of its length, one of its source, one of its number of loss runs."""
SUM_WORDS = 4
U64 = np.dtype("<u8")


class Range(NamedTuple):
    """Items [start, stop) of `total`."""

    start: int
    stop: int
    total: int


class SpillPart(NamedTuple):
    """Some neighbouring partitions of a spill, and the documents, tokens and loss runs (None: no masks) in them."""

    partitions: Range
    documents: Range
    tokens: Range
    runs: Range | None
    dtype: str

    @classmethod
    def of(cls, value: Any, low: int, high: int) -> "SpillPart":  # Any: the JSON of `write_spill`
        """Return partitions [low, high) of a spill."""

        def items(name: str) -> Range:
            return Range(value[name][low], value[name][high], value[name][-1])

        partitions = Range(low, high, len(value["tokens"]) - 1)
        runs = items("runs") if value["runs"] is not None else None
        return cls(partitions, items("documents"), items("tokens"), runs, value["dtype"])

    @classmethod
    def read(cls, record: Any) -> "SpillPart":  # Any: a SpillPart as JSON gives it back
        """Return a part that has been JSON."""
        *ranges, dtype = record
        partitions, documents, tokens, runs = (each and Range(*each) for each in ranges)
        return cls(partitions, documents, tokens, runs, dtype)

    @property
    def names(self) -> list[str]:
        """The files of the spill, in the order that `read_spill` takes."""
        return [TOKENS, DOCUMENTS, SOURCES, SUMS, *([LOSS_RUNS] if self.runs is not None else [])]


def spill_files(spill: Shard, part: SpillPart) -> list[FileRef]:
    """Return the files that `read_spill` takes."""
    return [spill.file(name) for name in part.names]


def write_spill(output: Output, pieces: Pieces, cuts: Sequence[int]) -> Json:
    """Write documents in their order as a spill whose partitions end at these documents.

    Returns the document, token and loss run at which each partition begins, and the ends.
    """
    borders = [0, *cuts]
    assert borders[-1] == len(pieces.lengths)
    sums = np.zeros((len(cuts), SUM_WORDS), U64)
    write_parts(output, TOKENS, _summed_parts(pieces, borders, sums), (pieces.num_tokens,), pieces.dtype)
    runs = None if pieces.loss is None else np.concatenate([np.empty(0, WORDS), *pieces.loss]).astype(WORDS)
    num_runs = np.array([len(each) for each in pieces.loss or ()], np.int64)
    run_borders = np.concatenate([[0], np.cumsum(num_runs)])[borders].tolist() if runs is not None else None
    column = pieces.sources.dictionary_encode()
    records = np.zeros((len(pieces.lengths), RECORD_WORDS), WORDS)
    records[:, :4] = np.ascontiguousarray(pieces.ids).view(WORDS)
    records[:, 4:6] = pieces.lengths.astype(U64).view(WORDS).reshape(-1, 2)
    records[:, 6] = column.indices.to_numpy()
    if runs is not None and run_borders is not None:
        records[:, 7] = num_runs
        write_parts(output, LOSS_RUNS, [runs], runs.shape, WORDS)
        for number, (first, last) in enumerate(pairwise(run_borders)):
            sums[number, 3] = xxhash.xxh3_64_intdigest(runs[first:last].data)
    for number, (first, last) in enumerate(pairwise(borders)):
        sums[number, 1:3] = xxhash.xxh3_64_intdigest(records[first:last].data), last - first
    write_parts(output, DOCUMENTS, [records], records.shape, WORDS)
    output.write(SOURCES, dumps(column.dictionary.to_pylist()).encode())
    write_parts(output, SUMS, [sums], sums.shape, U64)
    tokens = np.concatenate([[0], pieces.ends])[borders].tolist()
    return {"documents": borders, "tokens": tokens, "runs": run_borders, "dtype": pieces.dtype.str}


def _summed_parts(pieces: Pieces, borders: Sequence[int], sums: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the tokens, and note the checksum of each partition."""
    views, buffer = pieces.views(), copy_buffer(pieces.dtype)
    for number, (first, last) in enumerate(pairwise(borders)):
        state = xxhash.xxh3_64()
        for part in joined(views[first:last], pieces.lengths[first:last], buffer):
            state.update(part.data)
            yield part
        sums[number, 0] = state.intdigest()


def read_spill(files: Sequence[FileRef], part: SpillPart) -> Pieces:
    """Return the documents of some partitions of a spill; `files` in the order of `part.names`.

    Raises StoreError when they are not what was written. Remote ranges are read once more before that.
    """
    tokens_file, documents_file, sources_file, sums_file, *loss_files = files
    sums = _rows(sums_file, U64, part.partitions, SUM_WORDS)
    counts = sums[:, 2].astype(np.int64)
    records = _checked_rows(documents_file, WORDS, part.documents, counts, sums[:, 1], RECORD_WORDS)
    lengths = np.ascontiguousarray(records[:, 4:6]).view(U64).ravel().astype(np.int64)
    dtype = np.dtype(part.dtype)
    tokens = _checked_rows(tokens_file, dtype, part.tokens, _sums_of(lengths, counts), sums[:, 0])
    loss = None
    if part.runs is not None:
        num_runs = records[:, 7].astype(np.int64)
        runs = _checked_rows(loss_files[0], WORDS, part.runs, _sums_of(num_runs, counts), sums[:, 3])
        loss = np.split(runs, np.cumsum(num_runs)[:-1]) if len(num_runs) else []
    names = pa.array(json.loads(fs.read_file(sources_file)), pa.large_string())
    ids = np.ascontiguousarray(records[:, :4]).view(np.uint8)
    return pieces_of(tokens, lengths, ids, names.take(pa.array(records[:, 6])), loss)


def _sums_of(sizes: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return the sum of each of the groups of sizes, of `counts` sizes each."""
    ends = np.concatenate([[0], np.cumsum(sizes)])
    return np.diff(ends[np.concatenate([[0], np.cumsum(counts)])])


def _checked_rows(
    file: FileRef, dtype: np.dtype, rows: Range, sizes: np.ndarray, sums: np.ndarray, width: int | None = None
) -> np.ndarray:
    """Return rows of an array that are partitions of these sizes, with these checksums."""
    for _ in range(2):
        read = _rows(file, dtype, rows, width)
        if len(read) == sizes.sum() and _agree(read, sizes, sums):
            return read
    raise _damaged(file)


def _agree(rows: np.ndarray, sizes: np.ndarray, sums: np.ndarray) -> bool:
    borders = np.concatenate([[0], np.cumsum(sizes)]).tolist()
    parts = zip(pairwise(borders), sums.tolist(), strict=True)
    return all(xxhash.xxh3_64_intdigest(rows[first:last].data) == expected for (first, last), expected in parts)


def _rows(file: FileRef, dtype: np.dtype, rows: Range, width: int | None = None) -> np.ndarray:
    """Return rows of an array [total] or [total, width], not checked: mapped, or read by one request."""
    shape = (rows.total,) if width is None else (rows.total, width)
    head, row_bytes = len(array_header(shape, dtype)), dtype.itemsize * (width or 1)
    begin, length = head + rows.start * row_bytes, (rows.stop - rows.start) * row_bytes
    if file.size != head + rows.total * row_bytes:
        raise _damaged(file)
    path = fs.local_path(file.url)
    if path is not None:
        data = map_file(file, path)[begin : begin + length]
    else:
        data = np.frombuffer(fs.read_range(file.url, begin, length), np.uint8)
    if len(data) != length:
        raise _damaged(file)
    read: np.ndarray = data.view(dtype).reshape(rows.stop - rows.start, *shape[1:])
    return read


def _damaged(file: FileRef) -> StoreError:
    return StoreError(
        f"`{file.path}` of a spill is damaged: it does not have the checksums it was written with",
        where=file.url,
        hint="delete this file and run again: what made it runs anew",
    )
