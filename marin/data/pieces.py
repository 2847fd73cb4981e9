"""Documents' tokens in memory while they are shuffled: read a token shard, join, sort, cut.

Invariant: operations keep each document's tokens together and in order, and lose none. Tokens are not moved by sorting
or joining: a document is a place in an array, which is mapped where the file is local. Dimensions: N documents.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from marin.data.arrays import read_array
from marin.data.hashes import order_keys
from marin.data.token_files import INDEX, TOKENS, all_targets, bytes_of, loss_mask, read_index, read_loss
from marin.graph.files import Shard


class Stretch(NamedTuple):
    """A part of the stream: `lengths` of pieces of documents, which begin `offsets` tokens inside their document."""

    tokens: np.ndarray
    lengths: np.ndarray
    offsets: np.ndarray
    ids: np.ndarray
    sources: pa.Array
    is_target: np.ndarray | None
    """bool, one a token; None: all are targets."""


@dataclass(frozen=True)
class Pieces:
    """N documents: document n is `lengths[n]` tokens of `arrays[homes[n]]` from `starts[n]`.

    `lengths`, `starts`, `homes` int64 [N], `ids` uint8 [N, 16], `sources` strings [N], `loss` N `loss_runs` or None.
    """

    arrays: Sequence[np.ndarray]
    homes: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray
    ids: np.ndarray
    sources: pa.Array
    dtype: np.dtype[Any]
    loss: Sequence[np.ndarray] | None = None

    @property
    def ends(self) -> np.ndarray:
        """Where each document ends when they stand one after another, int64 [N]."""
        return np.cumsum(self.lengths)

    @property
    def num_tokens(self) -> int:
        """All tokens."""
        return int(self.lengths.sum())

    def keys(self, seed: int) -> np.ndarray:
        """Return the place of each document in the order of `seed`, uint64 [N]."""
        return order_keys(self.ids, seed)

    def sorted(self, seed: int) -> "Pieces":
        """Return the documents in the order of `seed`; equal keys by id, then by source, then by loss mask."""
        keys = self.keys(seed)
        order = np.argsort(keys, kind="stable")
        if (np.diff(keys[order].view(np.int64)) == 0).any():
            names = pc.rank(self.sources, tiebreaker="dense").to_numpy()
            halves = self.ids.view(">u8")
            order = np.lexsort((self._masks(), names, halves[:, 0], keys))
        return self.chosen(order)

    def _masks(self) -> np.ndarray:
        """Return a number for each document, equal for equal loss masks, that depends on the masks alone."""
        if self.loss is None:
            return np.zeros(len(self.lengths), np.int64)
        masks = [runs.astype("<u4").tobytes() for runs in self.loss]
        ranks = {mask: rank for rank, mask in enumerate(sorted(set(masks)))}
        return np.array([ranks[mask] for mask in masks])

    def chosen(self, order: np.ndarray) -> "Pieces":
        """Return the documents with these numbers, in that order."""
        return Pieces(
            self.arrays,
            self.homes[order],
            self.starts[order],
            self.lengths[order],
            self.ids[order],
            self.sources.take(pa.array(order)),
            self.dtype,
            None if self.loss is None else [self.loss[number] for number in order.tolist()],
        )

    def views(self, skip: np.ndarray | int = 0, lengths: np.ndarray | None = None) -> list[np.ndarray]:
        """Return the tokens of each document; or `lengths` of them, after the first `skip`. Nothing is copied."""
        arrays, starts = self.arrays, self.starts + skip
        ends = starts + (self.lengths if lengths is None else lengths)
        if len(arrays) == 1:
            (array,) = arrays
            return [array[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
        places = zip(self.homes.tolist(), starts.tolist(), ends.tolist(), strict=True)
        return [arrays[home][start:end] for home, start, end in places]

    def cut(self, start: int, length: int) -> Stretch:
        """Return tokens [start, start + length) of the documents one after another, copied."""
        ends = self.ends
        first = int(np.searchsorted(ends, start, side="right"))
        last = int(np.searchsorted(ends, start + length, side="left")) + 1
        part = self.chosen(np.arange(first, last))
        lengths, offsets = part.lengths.copy(), np.zeros(last - first, np.int64)
        skipped = start - int(ends[first - 1] if first else 0)
        lengths[0] -= skipped
        offsets[0] = skipped
        lengths[-1] -= int(lengths.sum()) - length
        tokens = np.empty(length, self.dtype)
        np.concatenate(part.views(offsets, lengths), out=tokens)
        is_target = None
        if part.loss is not None:
            is_target = np.concatenate([loss_mask(runs) for runs in part.loss])[skipped : skipped + length]
        return Stretch(tokens, lengths, offsets, part.ids, part.sources, is_target)


def read_pieces(shard: Shard) -> Pieces:
    """Return the documents of a token shard."""
    tokens = read_array(shard.file(TOKENS))
    index = read_index(shard.file(INDEX))
    lengths = np.diff(index["end"].to_numpy().astype(np.int64), prepend=0)
    assert len(tokens) == lengths.sum()
    return pieces_of(tokens, lengths, bytes_of(index["id"]), _strings(index["source"]), read_loss(index))


def pieces_of(
    tokens: np.ndarray,
    lengths: np.ndarray,
    ids: np.ndarray,
    sources: pa.Array,
    loss: Sequence[np.ndarray] | None = None,
) -> Pieces:
    """Return documents that stand one after another in one array."""
    homes = np.zeros(len(lengths), np.int64)
    return Pieces([tokens], homes, np.cumsum(lengths) - lengths, lengths, ids, sources, tokens.dtype, loss)


def join(parts: Sequence[Pieces]) -> Pieces:
    """Return the documents of all parts; where some have loss masks, all tokens of the others are targets."""
    dtypes = {part.dtype for part in parts}
    assert len(dtypes) == 1, "token shards of different tokenizers"
    firsts = np.cumsum([0, *(len(part.arrays) for part in parts)]).tolist()
    is_masked = any(part.loss is not None for part in parts)
    masks = [all_targets(part.lengths) if part.loss is None else part.loss for part in parts] if is_masked else []
    return Pieces(
        [array for part in parts for array in part.arrays],
        np.concatenate([part.homes + first for part, first in zip(parts, firsts, strict=False)]),
        np.concatenate([part.starts for part in parts]),
        np.concatenate([part.lengths for part in parts]),
        np.concatenate([part.ids for part in parts]),
        pa.concat_arrays([part.sources for part in parts]),
        dtypes.pop(),
        [runs for mask in masks for runs in mask] if is_masked else None,
    )


def _strings(column: pa.ChunkedArray) -> pa.Array:
    return pa.concat_arrays([pa.array([], pa.large_string()), *(chunk.dictionary_decode() for chunk in column.chunks)])
