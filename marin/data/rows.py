"""Rows of a shard of Sequences on disk: `tokens.npy` [rows, context + 1], and `index.arrow`, whose pieces fill them.

Where the tokens have loss masks, the index has a column `loss` as well, the `loss_runs` of each piece.
Invariant: row r of the stream holds tokens [r * context, r * context + context]; the last row of all is padded with
zeros. Within a shard rows are stored in the order of their mixed numbers, which depends on seed and number alone.
Legend: R rows, T context, P pieces (a piece is the part of one document in one row).
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from marin.base.json import Json
from marin.data.arrays import ragged
from marin.data.blocks import copy_buffer, joined, write_summed
from marin.data.hashes import mix64, seed_hash
from marin.data.pieces import Pieces, Stretch
from marin.data.token_files import LOSS, TOKENS, fixed_bytes, loss_column, loss_runs, write_index
from marin.graph.files import Output

PIECE_SCHEMA = pa.schema(
    [
        ("row", pa.uint32()),
        ("length", pa.uint32()),
        ("id", pa.binary(16)),
        ("offset", pa.uint64()),
        ("source", pa.dictionary(pa.int32(), pa.large_string())),
    ]
)
"""A row a piece, in stored order: its row, its tokens there, its document, and where in the document it begins."""


def write_rows(output: Output, stretch: Stretch, *, context: int, first_row: int, seed: int) -> Json:
    """Write a stretch of the stream that begins with row `first_row`.

    Returns the number of rows and of targets, the padded row, and the checksums of the blocks of `tokens.npy`.
    """
    length = int(stretch.lengths.sum())
    rows = -(-(length - 1) // context)
    order = np.argsort(mix64(np.arange(first_row, first_row + rows, dtype=np.uint64) ^ seed_hash(seed, "rows")))
    padding = rows * context + 1 - length
    padded_row = int(np.flatnonzero(order == rows - 1)[0]) if padding else None
    pieces = _pieces(stretch, order, context)
    parts = _joined(pieces, padded_row, padding)
    sums = write_summed(output, TOKENS, parts, (rows, context + 1), stretch.documents.dtype)
    index = _index(pieces, stretch.is_target)
    write_index(output, index, [index.num_rows])
    return {
        "context": context,
        "rows": rows,
        "targets": length - 1 if stretch.is_target is None else int(stretch.is_target[1:].sum()),
        "padded_row": padded_row,
        "padding": padding,
        "is_masked": stretch.is_target is not None,
        "blocks": list(sums),
    }


class RowPieces(NamedTuple):
    """P pieces in stored order: of `documents` [P], from `offsets` on, which are tokens [begin, end) of the stretch."""

    documents: Pieces
    row: np.ndarray
    offsets: np.ndarray
    begin: np.ndarray
    end: np.ndarray


def _pieces(stretch: Stretch, order: np.ndarray, context: int) -> RowPieces:
    ends = np.cumsum(stretch.lengths)
    begins = ends - stretch.lengths
    starts = order * context  # [R]
    stops = np.minimum(starts + context + 1, ends[-1])
    first = np.searchsorted(ends, starts, side="right")
    num_pieces = np.searchsorted(ends, stops, side="left") + 1 - first
    row = np.repeat(np.arange(len(order)), num_pieces)  # [P]
    piece = ragged(first, num_pieces)
    begin, end = np.maximum(begins[piece], starts[row]), np.minimum(ends[piece], stops[row])
    offsets = stretch.offsets[piece] + begin - begins[piece]
    return RowPieces(stretch.documents.chosen(piece), row, offsets, begin, end)


def _joined(pieces: RowPieces, padded_row: int | None, padding: int) -> Iterator[np.ndarray]:
    """Yield the tokens of all rows one after another, in a buffer that is used again."""
    documents, lengths = pieces.documents, pieces.end - pieces.begin
    views = documents.views(pieces.offsets, lengths)
    if padded_row is not None:
        at = int(np.searchsorted(pieces.row, padded_row, side="right"))
        views.insert(at, np.zeros(padding, documents.dtype))
        lengths = np.insert(lengths, at, padding)
    return joined(views, lengths, copy_buffer(documents.dtype))


def _index(pieces: RowPieces, is_target: np.ndarray | None) -> pa.Table:
    columns = [
        pa.array(pieces.row.astype(np.uint32)),
        pa.array((pieces.end - pieces.begin).astype(np.uint32)),
        fixed_bytes(pieces.documents.ids),
        pa.array(pieces.offsets.astype(np.uint64)),
        pieces.documents.sources.dictionary_encode(),
    ]
    if is_target is None:
        return pa.Table.from_arrays(columns, schema=PIECE_SCHEMA)
    bounds = zip(pieces.begin.tolist(), pieces.end.tolist(), strict=True)
    columns.append(loss_column([loss_runs(is_target[start:stop]) for start, stop in bounds]))
    return pa.Table.from_arrays(columns, schema=PIECE_SCHEMA.append(LOSS))
