"""Readers of the shards of Sequences: rows of a shard by number, with their targets and, where wanted, documents.

A shard of rows is one of two kinds: *cut*, as `Shuffle` writes it (`tokens.npy` [rows, context + 1], and the pieces
that fill the rows), or *packed*, as `Pack` does (`packing.arrow`: the pieces of documents in each row, which stay where
they are in a token shard). Invariant: a row is the same whoever reads it, and what it is read from is what was written.
Legend: B rows asked for, T context, P pieces, R rows of the shard.
"""

from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from marin.data.arrays import open_array, ragged
from marin.data.block_cache import BlockCache
from marin.data.token_files import INDEX, TOKENS, loss_mask, read_index, read_loss
from marin.graph.files import Shard

IGNORED = -100
"""Target of a position that has none; torch's cross entropy leaves it out."""

PACKING = "packing.arrow"

PACKING_SCHEMA = pa.schema(
    [
        ("row", pa.uint32()),
        ("document", pa.uint32()),
        ("offset", pa.uint64()),
        ("begin", pa.uint64()),
        ("length", pa.uint32()),
    ]
)
"""A row a piece, by row: its document's number in the token shard, where in the document it begins, and where in
`tokens.npy` that is, and its positions. The tokens at these are inputs, the tokens one further their targets."""


class Rows(NamedTuple):
    """B rows: `tokens`, `targets` int64 [B, T], and if asked for `segments` int32 [B, T], equal within a document."""

    tokens: np.ndarray
    targets: np.ndarray
    segments: np.ndarray | None


class RowReader(Protocol):
    """Reads rows of one shard; threads may share it."""

    num_rows: int

    def read(self, rows: np.ndarray, *, segments: bool) -> Rows:
        """Return the rows with these numbers, int64 [B], in that order."""

    def prefetch(self, rows: np.ndarray) -> None:
        """Say that these rows will be read soon; returns at once."""


class CutRows:
    """Rows that the shuffle cut out of the stream."""

    def __init__(self, shard: Shard, cache: BlockCache) -> None:
        value: Any = shard.value  # Any: the JSON of `write_rows`
        self.num_rows: int = value["rows"]
        self._shard = shard
        self._array = open_array(shard.file(TOKENS), sums=value.get("blocks", ()), shard=shard.name, cache=cache)
        self._padding = (value["padded_row"], value["padding"]) if value["padding"] else None
        self._is_masked = bool(value.get("is_masked"))

    @cached_property
    def _pieces(self) -> "_Pieces":
        return _Pieces(read_index(self._shard.file(INDEX)), self.num_rows)

    def read(self, rows: np.ndarray, *, segments: bool) -> Rows:
        """Return the rows with these numbers, in that order."""
        stored = self._array.take(rows)  # [B, T + 1]
        tokens, targets = stored[:, :-1].astype(np.int64), stored[:, 1:].astype(np.int64)
        if self._padding is not None:
            row, padding = self._padding
            targets[rows == row, targets.shape[1] - padding :] = IGNORED
        if self._is_masked:
            self._mask(rows, targets)
        return Rows(tokens, targets, self._pieces.segments(rows, tokens.shape[1]) if segments else None)

    def prefetch(self, rows: np.ndarray) -> None:
        """Say that these rows will be read soon."""
        self._array.prefetch(rows)

    def _mask(self, rows: np.ndarray, targets: np.ndarray) -> None:
        for row, row_targets in zip(rows.tolist(), targets, strict=True):
            first, last = self._pieces.first[row : row + 2].tolist()
            is_target = np.concatenate([loss_mask(runs) for runs in self._pieces.loss[first:last]])
            row_targets[: len(is_target) - 1][~is_target[1:]] = IGNORED


class PackedRows:
    """Rows of pieces of documents, which stay where they are in a token shard."""

    def __init__(self, shard: Shard, tokens: Shard, cache: BlockCache) -> None:
        value: Any = shard.value  # Any: the JSON of `pack_shard`
        self.num_rows: int = value["rows"]
        self._context: int = value["context"]
        self._packing, self._index = shard.file(PACKING), tokens.file(INDEX)
        sums: Any = tokens.value
        self._array = open_array(tokens.file(TOKENS), sums=sums["blocks"], shard=tokens.name, cache=cache)
        self._is_masked: bool = value["is_masked"]

    @cached_property
    def _pieces(self) -> "_Pieces":
        return _Pieces(read_index(self._packing), self.num_rows)

    @cached_property
    def _places(self) -> tuple[np.ndarray, np.ndarray]:
        """For each piece, its document and where in it the piece begins."""
        table = read_index(self._packing)
        return table["document"].to_numpy(), table["offset"].to_numpy()

    @cached_property
    def _loss(self) -> list[np.ndarray]:
        loss = read_loss(read_index(self._index))
        assert loss is not None
        return loss

    def read(self, rows: np.ndarray, *, segments: bool) -> Rows:
        """Return the rows with these numbers, in that order."""
        pieces = self._pieces
        chosen, home, at = pieces.of(rows)
        lengths = pieces.lengths[chosen].astype(np.int64)
        read = self._array.spans(pieces.begins[chosen].astype(np.int64), lengths + 1)
        lasts = np.cumsum(lengths + 1) - 1  # of each piece: a target only, as its first token is an input only
        is_last = np.zeros(len(read), np.bool_)
        is_last[lasts] = True
        places = ragged(home * self._context + at, lengths)
        tokens = np.zeros(len(rows) * self._context, np.int64)
        targets = np.full(len(rows) * self._context, IGNORED, np.int64)
        tokens[places] = read[~is_last]
        targets[places] = read[~np.roll(is_last, 1)] if len(read) else read
        if self._is_masked:
            targets[places[~self._is_target(chosen, lengths)]] = IGNORED
        shape = (len(rows), self._context)
        marked = pieces.segments(rows, self._context) if segments else None
        return Rows(tokens.reshape(shape), targets.reshape(shape), marked)

    def prefetch(self, rows: np.ndarray) -> None:
        """Say that these rows will be read soon."""
        chosen, _, _ = self._pieces.of(rows)
        begins, lengths = self._pieces.begins[chosen].astype(np.int64), self._pieces.lengths[chosen].astype(np.int64)
        self._array.prefetch(begins, lengths + 1)

    def _is_target(self, pieces: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        documents, offsets = self._places
        places = zip(documents[pieces].tolist(), offsets[pieces].tolist(), lengths.tolist(), strict=True)
        parts = [loss_mask(self._loss[document])[offset + 1 :][:length] for document, offset, length in places]
        return np.concatenate([np.empty(0, np.bool_), *parts])


class _Pieces:
    """Which pieces of documents are in which row: row r has pieces `first[r]` to `first[r + 1]`, end excluded."""

    def __init__(self, index: pa.Table, num_rows: int) -> None:
        counts = np.bincount(index["row"].to_numpy(), minlength=num_rows)
        self.first = np.concatenate([[0], np.cumsum(counts)])
        self.lengths = index["length"].to_numpy().astype(np.uint32)
        self.begins = _narrow(index["begin"].to_numpy()) if "begin" in index.column_names else self.lengths[:0]
        self.loss: list[np.ndarray] = read_loss(index) or []

    def of(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return for all pieces of rows [B]: their numbers, their row as a number in 0..B-1, where in it they begin."""
        counts = self.first[rows + 1] - self.first[rows]
        chosen = ragged(self.first[rows], counts)
        ends = np.concatenate([[0], np.cumsum(self.lengths[chosen], dtype=np.int64)])
        before = np.cumsum(counts) - counts  # the first of each row among the chosen
        return chosen, np.repeat(np.arange(len(rows)), counts), ends[:-1] - np.repeat(ends[before], counts)

    def segments(self, rows: np.ndarray, context: int) -> np.ndarray:
        """Return the number of each position's piece in its row, int32 [B, T]; padding has one of its own."""
        chosen, home, at = self.of(rows)
        begins = np.zeros((len(rows), context + 2), np.int32)
        begins[home, np.minimum(at, context + 1)] = 1
        ends = at + self.lengths[chosen]
        begins[home, np.minimum(ends, context + 1)] = 1  # the next piece, or padding
        return np.cumsum(begins[:, :context], axis=1, dtype=np.int32) - 1


def _narrow(values: np.ndarray) -> np.ndarray:
    """Return values in half their bytes, where they fit: a reader keeps those of all shards."""
    return values.astype(np.uint32) if not len(values) or int(values.max()) < 2**32 else values
