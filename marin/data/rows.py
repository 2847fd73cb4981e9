"""Rows of a shard of Sequences on disk: `tokens.npy` [rows, context + 1], and `index.arrow`, whose pieces fill them.

Where the tokens have loss masks, the index has a column `loss` as well, the `loss_runs` of each piece.
Invariant: row r of the stream holds tokens [r * context, r * context + context]; the last row of all is padded with
zeros. Within a shard rows are stored in the order of their mixed numbers, which depends on seed and number alone.
Legend: R rows, T context, P pieces (a piece is the part of one document in one row).
"""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from marin.base.json import Json
from marin.data.blocks import COPY_BYTES, write_summed
from marin.data.hashes import mix64, seed_hash
from marin.data.pieces import Stretch
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
    length = len(stretch.tokens)
    rows = -(-(length - 1) // context)
    order = np.argsort(mix64(np.arange(first_row, first_row + rows, dtype=np.uint64) ^ seed_hash(seed, "rows")))
    padding = rows * context + 1 - length
    tokens = np.pad(stretch.tokens, (0, padding)) if padding else stretch.tokens
    windows = np.lib.stride_tricks.sliding_window_view(tokens, context + 1)[::context]
    sums = write_summed(output, TOKENS, _permuted(windows, order), windows.shape, tokens.dtype)
    index = _piece_index(stretch, order, context)
    write_index(output, index, [index.num_rows])
    return {
        "context": context,
        "rows": rows,
        "targets": length - 1 if stretch.is_target is None else int(stretch.is_target[1:].sum()),
        "padded_row": int(np.flatnonzero(order == rows - 1)[0]) if padding else None,
        "padding": padding,
        "is_masked": stretch.is_target is not None,
        "blocks": list(sums),
    }


def _permuted(windows: np.ndarray, order: np.ndarray) -> Iterator[np.ndarray]:
    step = max(1, COPY_BYTES // (windows.shape[1] * windows.itemsize))
    for at in range(0, len(order), step):
        yield windows[order[at : at + step]]


def _piece_index(stretch: Stretch, order: np.ndarray, context: int) -> pa.Table:
    ends = np.cumsum(stretch.lengths)
    begins = ends - stretch.lengths
    starts = order * context  # [R]
    stops = np.minimum(starts + context + 1, len(stretch.tokens))
    first = np.searchsorted(ends, starts, side="right")
    num_pieces = np.searchsorted(ends, stops, side="left") + 1 - first
    row = np.repeat(np.arange(len(order)), num_pieces)  # [P]
    piece = np.arange(len(row)) - np.repeat(np.cumsum(num_pieces) - num_pieces - first, num_pieces)
    begin, end = np.maximum(begins[piece], starts[row]), np.minimum(ends[piece], stops[row])
    columns = [
        pa.array(row.astype(np.uint32)),
        pa.array((end - begin).astype(np.uint32)),
        fixed_bytes(stretch.ids[piece]),
        pa.array((stretch.offsets[piece] + begin - begins[piece]).astype(np.uint64)),
        stretch.sources.take(pa.array(piece)).dictionary_encode(),
    ]
    if stretch.is_target is None:
        return pa.Table.from_arrays(columns, schema=PIECE_SCHEMA)
    bounds = zip(begin.tolist(), end.tolist(), strict=True)
    columns.append(loss_column([loss_runs(stretch.is_target[start:stop]) for start, stop in bounds]))
    return pa.Table.from_arrays(columns, schema=PIECE_SCHEMA.append(LOSS))
