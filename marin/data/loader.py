"""Batches of training rows from the shards of Sequences.

Invariant: sequence i is the same row for every world size, thread and process, and it is what was written: each block
of tokens is compared with its checksum before it is used. Of a shuffle's rows every token but the stream's first is a
target exactly once. Local files are memory-mapped; remote ones are read by cached blocks, those of the next batches
ahead.
"""

import hashlib
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, overload

import numpy as np

from marin.base.errors import DataError
from marin.data.arrays import TokenArray, open_array
from marin.data.block_cache import BlockCache
from marin.data.row_readers import IGNORED, PACKING, CutRows, PackedRows, RowReader, Rows
from marin.data.token_files import TOKENS
from marin.graph.files import FileRef, Shard

__all__ = ["IGNORED", "ORDER", "Batch", "SegmentedBatch", "SequenceData"]

ORDER = "order.npy"
"""Of a mixture: row numbers over all shards of rows, in the order in which they are to be read."""

BATCHES_AHEAD = 8


class Batch(NamedTuple):
    """`tokens` and `targets`, int64 [B, T]; `targets[b, t]` follows `tokens[b, t]` in its document, or is -100."""

    tokens: np.ndarray
    targets: np.ndarray


class SegmentedBatch(NamedTuple):
    """A batch, and which document each position belongs to."""

    tokens: np.ndarray
    targets: np.ndarray
    segments: np.ndarray
    """int32 [B, T]: numbers from 0 within a row, equal within a document; padding has one of its own."""
    positions: np.ndarray
    """int32 [B, T]: from 0 in each segment."""


class SequenceData:
    """Random access to N sequences of `context` tokens. Cheap to make; threads may share it."""

    def __init__(self, shards: Sequence[Shard], context: int, *, cache: BlockCache | None = None) -> None:
        """`cache`: what keeps blocks of remote files; by default one that keeps few, in memory."""
        parts = _parts(shards)
        _check(parts.rows, context)
        cache = cache or BlockCache()
        tokens = {shard.digest: shard for shard in parts.tokens}
        self.context = context
        self.num_target_tokens: int = sum(_value(shard)["targets"] for shard in parts.rows)
        """Targets of all rows, each counted once, however often a mixture repeats it."""
        self.digest = _digest(parts, tokens)
        """Digest of all rows and of their order."""
        self._readers = [_reader(shard, tokens, cache) for shard in parts.rows]
        self._starts = np.cumsum([0, *(reader.num_rows for reader in self._readers)])
        self._order: TokenArray | None = None
        if parts.order is not None:
            sums = _value(parts.order)["blocks"]
            self._order = open_array(parts.order.file(ORDER), sums=sums, shard=parts.order.name, cache=cache)
        self._expected = _Stride()

    def __len__(self) -> int:
        return int(self._starts[-1]) if self._order is None else self._order.shape[0]

    @overload
    def batch(self, indices: np.ndarray) -> Batch: ...

    @overload
    def batch(self, indices: np.ndarray, *, segments: Literal[False]) -> Batch: ...

    @overload
    def batch(self, indices: np.ndarray, *, segments: Literal[True]) -> SegmentedBatch: ...

    def batch(self, indices: np.ndarray, *, segments: bool = False) -> Batch | SegmentedBatch:
        """Return the sequences with these numbers (int64 [B]), in that order; IndexError outside [0, N).

        StoreError for a block that is not what was written, naming shard and block.
        """
        indices = np.asarray(indices, dtype=np.int64)
        if indices.size and (indices.min() < 0 or indices.max() >= len(self)):
            raise IndexError(f"sequences {indices.min()} to {indices.max()} of {len(self)}")
        rows = self._rows(self._numbers(indices), segments=segments)
        if indices.size:
            self.prefetch(self._expected.after(indices, len(self)))
        if rows.segments is None:
            return Batch(rows.tokens, rows.targets)
        return SegmentedBatch(rows.tokens, rows.targets, rows.segments, _positions(rows.segments))

    def prefetch(self, indices: np.ndarray) -> None:
        """Say that these sequences will be asked for soon, in this order; returns at once. `batch` guesses as well."""
        if len(indices):
            numbers = self._numbers(indices)
            homes = np.searchsorted(self._starts, numbers, side="right") - 1
            for home in dict.fromkeys(homes.tolist()):
                self._readers[home].prefetch(numbers[homes == home] - self._starts[home])

    def _numbers(self, indices: np.ndarray) -> np.ndarray:
        """Return row numbers over all shards."""
        return indices if self._order is None else self._order.take(indices).astype(np.int64)

    def _rows(self, numbers: np.ndarray, *, segments: bool) -> Rows:
        homes = np.searchsorted(self._starts, numbers, side="right") - 1
        used = np.unique(homes).tolist()
        if len(used) == 1:
            only = int(used[0])
            return self._readers[only].read(numbers - self._starts[only], segments=segments)
        shape = (len(numbers), self.context)
        marks = np.empty(shape, np.int32) if segments else None
        rows = Rows(np.empty(shape, np.int64), np.empty(shape, np.int64), marks)
        for home in used:
            here = np.flatnonzero(homes == home)
            part = self._readers[home].read(numbers[here] - self._starts[home], segments=segments)
            rows.tokens[here], rows.targets[here] = part.tokens, part.targets
            if rows.segments is not None:
                rows.segments[here] = part.segments
        return rows


class _Stride:
    """Guesses the next batches of a reader that goes on by equal strides; in a permuted epoch it guesses nothing."""

    def __init__(self) -> None:
        self._last, self._stride = 0, 0

    def after(self, indices: np.ndarray, num_sequences: int) -> np.ndarray:
        """Return the sequences that will be asked for after these."""
        stride = int(indices[0]) - self._last
        is_steady = stride == self._stride and stride > 0
        self._last, self._stride = int(indices[0]), stride
        if not is_steady:
            return indices[:0]
        ahead = np.concatenate([indices + stride * step for step in range(1, BATCHES_AHEAD + 1)])
        return ahead[ahead < num_sequences]


class _Parts(NamedTuple):
    """The shards of Sequences by kind."""

    rows: list[Shard]
    tokens: list[Shard]
    order: Shard | None


def _parts(shards: Sequence[Shard]) -> _Parts:
    rows = [shard for shard in shards if "rows" in _value(shard)]
    orders = [shard for shard in shards if "order" in _value(shard)]
    tokens = [shard for shard in shards if "documents" in _value(shard)]
    assert len(orders) <= 1
    return _Parts(rows, tokens, orders[0] if orders else None)


def _reader(shard: Shard, tokens: dict[str, Shard], cache: BlockCache) -> RowReader:
    packed = _value(shard).get("packed")
    return CutRows(shard, cache) if packed is None else PackedRows(shard, tokens[packed], cache)


def _digest(parts: _Parts, tokens: dict[str, Shard]) -> str:
    files: list[FileRef] = []
    for shard in parts.rows:
        packed = _value(shard).get("packed")
        files += [shard.file(TOKENS)] if packed is None else [shard.file(PACKING), tokens[packed].file(TOKENS)]
    if parts.order is not None:
        files.append(parts.order.file(ORDER))
    return hashlib.sha256("".join(file.digest for file in files).encode()).hexdigest()


def _positions(segments: np.ndarray) -> np.ndarray:
    places = np.arange(segments.shape[1], dtype=np.int32)
    begins = np.zeros(segments.shape, np.int32)
    begins[:, 1:] = np.where(segments[:, 1:] != segments[:, :-1], places[1:], 0)
    positions: np.ndarray = places - np.maximum.accumulate(begins, axis=1)
    return positions


def _check(shards: Sequence[Shard], context: int) -> None:
    if not shards:
        raise DataError("there are no sequences", hint="give the Sequences of a Shuffle, Pack or Mix step")
    for value in map(_value, shards):
        if value["context"] != context:
            raise DataError(
                f"the sequences have context {value['context']}, {context} is asked for",
                where="context",
                hint=f"use context={value['context']}, or shuffle again with context={context}",
            )


def _value(shard: Shard) -> Any:  # Any: the JSON that the shard's function returned
    return shard.value
