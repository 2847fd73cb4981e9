"""Rows of Sequences with the documents in them, for a person to look at, whichever step made them.

A shard of rows is cut or packed (see `row_readers`); a mixture has an order over the rows of all. Invariant: sample n
is what a training run reads as sequence n. A piece of a packed row has the token after its positions as well: its last
target.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from marin.data.arrays import open_array
from marin.data.hashes import bundle
from marin.data.loader import ORDER
from marin.data.row_readers import PACKING
from marin.data.token_files import INDEX, TOKENS, loss_mask, read_index, read_loss
from marin.graph.files import FileRef, Shard


class Piece(NamedTuple):
    """Part of a document in a row: its `id` in hex, where in the document it begins, how many tokens, and the first."""

    id: str
    source: str
    offset: int
    tokens: int
    ids: np.ndarray
    is_target: np.ndarray | None
    """Whether each of the ids is a target; None: all are."""


class Row(NamedTuple):
    """One sequence: where it is, its tokens, or positions in a packed one, padding among them, and its pieces."""

    sequence: int
    shard: int
    row: int
    unit: str
    tokens: int
    padding: int
    pieces: list[Piece]


class RowListing:
    """The sequences of an artifact in the order of training."""

    def __init__(self, shards: Sequence[Shard]) -> None:
        self._shards = shards
        self._places = [at for at, shard in enumerate(shards) if "rows" in _value(shard)]
        self._ends = list(accumulate(_value(shards[at])["rows"] for at in self._places))
        orders = [shard for shard in shards if "order" in _value(shard)]
        self._order = open_array(orders[0].file(ORDER)) if orders else None
        self._tokens = {shard.digest: shard for shard in shards}

    def __len__(self) -> int:
        return self._order.shape[0] if self._order is not None else (self._ends[-1] if self._ends else 0)

    def read(self, sequences: Sequence[int], *, length: int) -> Iterator[Row]:
        """Yield sequences by number; of each the first `length` ids."""
        for sequence in sequences:
            number = sequence if self._order is None else int(self._order.read(sequence, sequence + 1)[0])
            home = bisect_right(self._ends, number)
            place, row = self._places[home], number - (self._ends[home - 1] if home else 0)
            shard = self._shards[place]
            packed = _value(shard).get("packed")
            tokens, padding, pieces = (
                _cut(shard, row, length) if packed is None else _packed(shard, self._tokens[packed], row, length)
            )
            yield Row(sequence, place, row, "tokens" if packed is None else "positions", tokens, padding, pieces)


def index_inputs(shards: Sequence[Shard]) -> list[Shard]:
    """Return, for each shard of rows, the files that say which parts of documents fill them."""
    by_digest = {shard.digest: shard for shard in shards}
    inputs = []
    for shard in shards:
        value = _value(shard)
        if "rows" in value:
            packed = value.get("packed")
            files = [shard.file(INDEX)] if packed is None else [shard.file(PACKING), by_digest[packed].file(INDEX)]
            inputs.append(bundle(files, value["rows"]))
    return inputs


def read_pieces_of(files: Sequence[FileRef]) -> tuple[np.ndarray, pa.Array]:
    """Return the length, int64 [P], and the source of each piece, from the files of one of `index_inputs`."""
    pieces = read_index(files[0])
    lengths = pieces["length"].to_numpy().astype(np.int64)
    if len(files) == 1:
        return lengths, _strings(pieces["source"])
    documents = pa.array(pieces["document"].to_numpy())
    return lengths, _strings(read_index(files[1])["source"]).take(documents)


def _cut(shard: Shard, row: int, length: int) -> tuple[int, int, list[Piece]]:
    index, loss = read_index(shard.file(INDEX)), None
    inside = np.flatnonzero(index["row"].to_numpy() == row)
    first, last = int(inside[0]), int(inside[-1]) + 1  # pieces of a row follow each other
    index = index.slice(first, last - first)
    loss = read_loss(index.combine_chunks())
    ids, used, pieces = open_array(shard.file(TOKENS)).read(row, row + 1)[0], 0, []
    for at, tokens in enumerate(index["length"].to_pylist()):
        shown = ids[used : min(used + tokens, length)]
        mask = None if loss is None else loss_mask(loss[at])[: len(shown)]
        pieces.append(_piece(index, at, index["offset"][at].as_py(), tokens, shown, mask))
        used += tokens
    return len(ids), len(ids) - used, pieces


def _packed(shard: Shard, tokens: Shard, row: int, length: int) -> tuple[int, int, list[Piece]]:
    packing, index = read_index(shard.file(PACKING)), read_index(tokens.file(INDEX))
    array, loss = open_array(tokens.file(TOKENS)), read_loss(index)
    context, used, pieces = _value(shard)["context"], 0, []
    for at in np.flatnonzero(packing["row"].to_numpy() == row).tolist():
        document, offset, begin, positions = (
            int(packing[name][at].as_py()) for name in ("document", "offset", "begin", "length")
        )
        shown = array.read(begin, begin + min(positions + 1, max(0, length - used)))
        mask = None if loss is None else loss_mask(loss[document])[offset : offset + len(shown)]
        pieces.append(_piece(index, document, offset, positions + 1, shown, mask))
        used += positions
    return context, context - used, pieces


def _piece(index: pa.Table, at: int, offset: int, tokens: int, ids: np.ndarray, is_target: np.ndarray | None) -> Piece:
    return Piece(index["id"][at].as_py().hex(), index["source"][at].as_py(), offset, tokens, ids, is_target)


def _strings(column: pa.ChunkedArray) -> pa.Array:
    return pa.concat_arrays([pa.array([], pa.large_string()), *(part.dictionary_decode() for part in column.chunks)])


def _value(shard: Shard) -> Any:  # Any: the JSON that the shard's function returned
    return shard.value if isinstance(shard.value, dict) else {}
