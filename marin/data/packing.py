"""Rows of training made of whole documents where they fit: an index over shuffled token shards, which stay as they are.

A document of L tokens has L - 1 positions: each token but the last is an input, and the one after it its target, so no
target crosses from one document to another. A row has `context` positions. Invariants: which documents a shard of rows
has, and their order, is that of the shuffle, a pure function of seed and content; and no token is lost without being
counted: tokens in = tokens out + dropped by reason. Legend: N documents, P pieces, R rows.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa

from marin.base.errors import DataError
from marin.base.json import Json
from marin.data import counts
from marin.data.arrays import ragged
from marin.data.best_fit import best_fit
from marin.data.blocks import copy_buffer, joined, write_summed
from marin.data.hashes import bundle, mix64, seed_hash
from marin.data.row_readers import PACKING, PACKING_SCHEMA
from marin.data.shuffle import ShufflePlan, Stream, read_input, whole_input
from marin.data.token_files import (
    INDEX,
    TOKENS,
    DocumentColumns,
    loss_mask,
    read_index,
    read_loss,
    write_document_index,
    write_index,
)
from marin.graph.files import Output, Shard

Method = Literal["best_fit", "concat", "one_per_row"]
Long = Literal["fragment", "truncate", "drop"]

WINDOW = 65_536
"""Documents that are packed together; their rows stay in the shard in which these documents are."""


def document_inputs(spills: Sequence[Shard], plan: ShufflePlan, *, shard_tokens: int) -> list[Shard]:
    """Return the inputs of `gather_documents`: equal numbers of documents, of about `shard_tokens` tokens on average.

    `spills` are the results of `spill_shard` on `plan.spilled`, in any order.
    """
    if plan.one_pass:
        return [whole_input(plan.shards, {"skip": 0, "documents": None})]
    stream = Stream.of(spills, "documents")
    num_documents, num_shards = int(stream.begins[-1]), -(-plan.num_tokens // shard_tokens)
    borders = [num_documents * number // num_shards for number in range(num_shards + 1)]
    return [
        stream.merge_input(start, stop, {"documents": stop - start})
        for start, stop in pairwise(borders)
        if stop > start
    ]


def gather_documents(shard: Shard, output: Output, *, seed: int) -> Json:
    """Write a token shard of documents that follow each other in the order of `seed`; returns counts and checksums."""
    part, pieces = _value(shard), read_input(shard, seed)
    number = len(pieces.lengths) if part["documents"] is None else part["documents"]
    pieces = pieces.chosen(np.arange(part["skip"], part["skip"] + number))
    parts = joined(pieces.views(), pieces.lengths, copy_buffer(pieces.dtype))
    sums = write_summed(output, TOKENS, parts, (pieces.num_tokens,), pieces.dtype)
    write_document_index(output, DocumentColumns(pieces.lengths, pieces.ids, pieces.sources, pieces.loss))
    return {
        "documents": number,
        "tokens": pieces.num_tokens,
        "is_masked": pieces.loss is not None,
        "blocks": list(sums),
    }


def pack_inputs(gathered: Sequence[Shard]) -> list[Shard]:
    """Return the inputs of `pack_shard`: the index of each token shard, and which it is."""
    return [
        bundle([shard.file(INDEX)], {"packed": shard.digest, "number": number, "is_masked": _value(shard)["is_masked"]})
        for number, shard in enumerate(gathered)
    ]


def pack_shard(shard: Shard, output: Output, *, context: int, method: Method, long: Long, seed: int) -> Json:
    """Write `packing.arrow` for the documents of an index; returns counts of documents, tokens, rows and padding.

    Rows are stored in the order of their mixed numbers: neighbours in a window are alike in what they hold.
    """
    value = _value(shard)
    index = read_index(shard.files[0])
    ends = index["end"].to_numpy().astype(np.int64)
    lengths = np.diff(ends, prepend=0)
    pieces = pack(np.maximum(lengths - 1, 0), context=context, method=method, long=long)
    num_rows = int(pieces.row.max()) + 1 if len(pieces.row) else 0
    salt = seed_hash(seed, f"rows of shard {value['number']}")
    row = np.empty(num_rows, np.int64)
    row[np.argsort(mix64(np.arange(num_rows, dtype=np.uint64) ^ salt))] = np.arange(num_rows)
    pieces = pieces.chosen(np.lexsort((pieces.offset, pieces.document, row[pieces.row])))
    begin = (ends - lengths)[pieces.document] + pieces.offset
    columns = [row[pieces.row], pieces.document, pieces.offset, begin, pieces.length]
    arrays = [pa.array(column).cast(kind.type) for column, kind in zip(columns, PACKING_SCHEMA, strict=True)]
    write_index(output, pa.Table.from_arrays(arrays, schema=PACKING_SCHEMA), [len(begin)], path=PACKING)
    positions = int(pieces.length.sum())
    return {
        "packed": value["packed"],
        "context": context,
        "is_masked": value["is_masked"],
        "rows": num_rows,
        "padding": num_rows * context - positions,
        "targets": _num_targets(index, pieces) if value["is_masked"] else positions,
        **_counted(lengths, pieces, context=context, long=long),
    }


class Packed(NamedTuple):
    """P pieces, int64 each: in which row, of which document, from which of its positions, how many."""

    row: np.ndarray
    document: np.ndarray
    offset: np.ndarray
    length: np.ndarray

    def chosen(self, order: np.ndarray) -> "Packed":
        """Return the pieces with these numbers, in that order."""
        return Packed(self.row[order], self.document[order], self.offset[order], self.length[order])


def pack(positions: np.ndarray, *, context: int, method: Method, long: Long) -> Packed:
    """Return the pieces of N documents of so many positions, int64 [N]; every row from 0 on has one.

    `long`: what becomes of documents of more than `context` positions: fragments, their begin, or nothing. With
    `concat` documents are cut wherever a row ends, with the others a piece is a whole document where that is possible.
    """
    if long == "truncate":
        positions = np.minimum(positions, context)
    elif long == "drop":
        positions = np.where(positions > context, 0, positions)
    if method == "concat":
        return _concatenated(positions, context)
    number = -(-positions // context)
    document = np.repeat(np.arange(len(positions)), number)
    offset = ragged(np.zeros_like(number), number) * context
    length = np.minimum(positions[document] - offset, context)
    row = np.arange(len(document)) if method == "one_per_row" else _best_fit_rows(length, document, context)
    return Packed(row, document, offset, length)


def _best_fit_rows(length: np.ndarray, document: np.ndarray, context: int) -> np.ndarray:
    row = np.empty_like(length)
    num_rows = 0
    borders = np.searchsorted(document, np.arange(0, (int(document[-1]) if len(document) else 0) + 1 + WINDOW, WINDOW))
    for start, stop in pairwise(borders.tolist()):
        if stop > start:
            row[start:stop] = num_rows + best_fit(length[start:stop], context)
            num_rows = int(row[start:stop].max()) + 1
    return row


def _concatenated(positions: np.ndarray, context: int) -> Packed:
    """Cut the positions of all documents, one after another, at every multiple of the context."""
    ends = np.cumsum(positions)
    starts = ends - positions
    number = np.where(positions > 0, (ends - 1) // context - starts // context + 1, 0)
    document = np.repeat(np.arange(len(positions)), number)
    row = ragged(starts // context, number)
    begin = np.maximum(starts[document], row * context)
    length = np.minimum(ends[document], (row + 1) * context) - begin
    return Packed(row, document, begin - starts[document], length)


def _num_targets(index: pa.Table, pieces: Packed) -> int:
    loss = read_loss(index)
    assert loss is not None
    before = [np.concatenate([[0], np.cumsum(loss_mask(runs))]) for runs in loss]
    first, last = pieces.offset + 1, pieces.offset + 1 + pieces.length
    places = zip(pieces.document.tolist(), first.tolist(), last.tolist(), strict=True)
    return int(sum(before[document][stop] - before[document][start] for document, start, stop in places))


def _counted(lengths: np.ndarray, pieces: Packed, *, context: int, long: Long) -> dict[str, Json]:
    """Return the counts of documents and tokens; they balance."""
    kept = np.zeros(len(lengths), np.int64)
    np.add.at(kept, pieces.document, pieces.length)
    kept += kept > 0  # the token that is the first input
    is_long = lengths - 1 > context
    single = int((lengths < 2).sum())
    dropped = {"single_token": single, "too_long": int(is_long.sum()) if long == "drop" else 0}
    lost = {
        "single_token": int(lengths[lengths < 2].sum()),
        "too_long": int(lengths[is_long].sum()) if long == "drop" else 0,
        "truncated": int((lengths - kept)[is_long].sum()) if long == "truncate" else 0,
    }
    tokens_in, tokens_out = int(lengths.sum()), int(kept.sum())
    assert tokens_in == tokens_out + sum(lost.values())
    notes = {"fragmented": int((np.bincount(pieces.document, minlength=1) > 1).sum())}
    if long == "truncate":
        notes["truncated"] = int(is_long.sum())
    return {
        "documents_in": len(lengths),
        "documents_out": len(lengths) - sum(dropped.values()),
        "dropped": {name: number for name, number in dropped.items() if number},
        "tokens_in": tokens_in,
        "tokens_out": tokens_out,
        "tokens_dropped": {name: number for name, number in lost.items() if number},
        "notes": dict(notes),
    }


def total(records: Any, tokens_meta: Any, *, context: int, seed: int) -> dict[str, Any]:  # Any: JSON
    """Return the record of the Sequences; DataError when no row is left, with what became of the documents."""
    sums = counts.add(records)
    if not sums["rows"]:
        dropped = ", ".join(f"{number} {reason}" for reason, number in sums.get("dropped", {}).items())
        raise DataError(
            f"no document is left of {sums['documents_in']} ({dropped})",
            where="Pack",
            hint='give longer documents, a longer context, or long="fragment"',
        )
    named = ("documents_in", "documents_out", "dropped", "tokens_in", "tokens_out", "tokens_dropped", "notes")
    return {
        **{name: tokens_meta[name] for name in ("vocab_size", "dtype", "eos", "eos_id", "bytes")},
        **{name: sums[name] for name in named if name in sums},
        "documents": sums["documents_out"],
        "num_tokens": sums["tokens_out"],
        "num_sequences": sums["rows"],
        "num_target_tokens": sums["targets"],
        "padding": sums["padding"],
        "context": context,
        "seed": seed,
    }


def _value(shard: Shard) -> Any:  # Any: the JSON that the shard's function returned
    return shard.value
