"""Documents' tokens in memory while they are shuffled: read a part of a token shard, join, sort, cut.

Invariant: operations keep each document's tokens together and in order, and lose none. Dimensions: N documents.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from marin.data.arrays import open_array
from marin.data.hashes import order_keys
from marin.data.token_files import INDEX, TOKENS, bytes_of, fixed_bytes, read_index, write_array, write_index
from marin.graph.files import Output, Shard

SPILL_SCHEMA = pa.schema(
    [("length", pa.uint64()), ("id", pa.binary(16)), ("source", pa.dictionary(pa.int32(), pa.large_string()))]
)


class Stretch(NamedTuple):
    """A part of the stream: `lengths` of pieces of documents, which begin `offsets` tokens inside their document."""

    tokens: np.ndarray
    lengths: np.ndarray
    offsets: np.ndarray
    ids: np.ndarray
    sources: pa.Array


@dataclass(frozen=True)
class Pieces:
    """N documents: `views` one array a document, `lengths` int64 [N], `ids` uint8 [N, 16], `sources` strings [N]."""

    views: Sequence[np.ndarray]
    lengths: np.ndarray
    ids: np.ndarray
    sources: pa.Array
    dtype: np.dtype[Any]

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
        """Return the documents in the order of `seed`; equal keys by id, then by source."""
        keys = self.keys(seed)
        order = np.argsort(keys, kind="stable")
        if (np.diff(keys[order].view(np.int64)) == 0).any():
            names = pc.rank(self.sources, tiebreaker="dense").to_numpy() if len(keys) else keys
            halves = self.ids.view(">u8")
            order = np.lexsort((names, halves[:, 0], keys))
        return Pieces(
            [self.views[at] for at in order.tolist()],
            self.lengths[order],
            self.ids[order],
            self.sources.take(pa.array(order)),
            self.dtype,
        )

    def cut(self, start: int, length: int) -> Stretch:
        """Return tokens [start, start + length) of the documents one after another."""
        ends = self.ends
        first = int(np.searchsorted(ends, start, side="right"))
        last = int(np.searchsorted(ends, start + length, side="left")) + 1
        tokens = np.concatenate([np.empty(0, self.dtype), *self.views[first:last]])
        skipped = start - int(ends[first - 1] if first else 0)
        lengths, offsets = self.lengths[first:last].copy(), np.zeros(last - first, np.int64)
        lengths[0] -= skipped
        offsets[0] = skipped
        lengths[-1] -= int(lengths.sum()) - length
        return Stretch(
            tokens[skipped : skipped + length],
            lengths,
            offsets,
            self.ids[first:last],
            self.sources.slice(first, last - first),
        )


def read_pieces(shard: Shard, part: Sequence[int] | None = None) -> Pieces:
    """Return the documents of a token shard, or of a part of a spill.

    `part` is first and last record batch of the index, and first and last token, ends excluded.
    """
    array = open_array(shard.file(TOKENS))
    first, last, start, stop = part or (0, None, 0, array.shape[0])
    index = read_index(shard.file(INDEX), first, last)
    if "length" in index.column_names:
        lengths = index["length"].to_numpy().astype(np.int64)
    else:
        lengths = np.diff(index["end"].to_numpy().astype(np.int64), prepend=0)
    tokens = array.read(start, stop)
    assert len(tokens) == lengths.sum()
    bounds = [0, *np.cumsum(lengths).tolist()]
    views = [tokens[begin:end] for begin, end in pairwise(bounds)]
    return Pieces(views, lengths, bytes_of(index["id"]), _strings(index["source"]), array.dtype)


def join(parts: Sequence[Pieces]) -> Pieces:
    """Return the documents of all parts."""
    dtypes = {part.dtype for part in parts}
    assert len(dtypes) == 1, "token shards of different tokenizers"
    return Pieces(
        [view for part in parts for view in part.views],
        np.concatenate([part.lengths for part in parts]),
        np.concatenate([part.ids for part in parts]),
        pa.concat_arrays([part.sources for part in parts]),
        dtypes.pop(),
    )


def write_spill(output: Output, pieces: Pieces, cuts: Sequence[int]) -> None:
    """Write documents in their order, as a token shard whose index has a record batch up to each cut."""
    write_array(output, TOKENS, pieces.views, (pieces.num_tokens,), pieces.dtype)
    columns = [pa.array(pieces.lengths.astype(np.uint64)), fixed_bytes(pieces.ids), pieces.sources.dictionary_encode()]
    write_index(output, pa.Table.from_arrays(columns, schema=SPILL_SCHEMA), cuts)


def _strings(column: pa.ChunkedArray) -> pa.Array:
    return pa.concat_arrays([pa.array([], pa.large_string()), *(chunk.dictionary_decode() for chunk in column.chunks)])
