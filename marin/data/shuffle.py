"""One global order of all documents, cut into rows of `context` tokens: an external sort in two passes.

The order of documents is that of `order_keys`: a pure function of seed and content. Their tokens, one after another,
are the *stream*; row r holds tokens [r * context, r * context + context] of it, one more than `context`, so that every
token but the stream's first is a target exactly once. Rows are cut into shards of a fixed number of rows and stored
permuted within their shard: rows of one long document, which are neighbours in the stream, do not meet in a batch.

Invariant: the files are byte-identical for any number of input shards, partitions and workers.
First pass (`spill_shard`): a token shard is sorted by key and spilled, cut into partitions of the keys. Second pass
(`merge_partition`): a final shard reads, from every spill, the partitions that its part of the stream lies in. When
everything fits one final shard, there is no first pass.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from marin.base.errors import DataError
from marin.base.json import Json
from marin.data import counts
from marin.data.hashes import bundle
from marin.data.pieces import Pieces, join, read_pieces
from marin.data.rows import write_rows
from marin.data.spills import SpillPart, read_spill, spill_files, write_spill
from marin.data.token_files import INDEX, TOKENS
from marin.graph.files import Output, Shard

SHARD_TOKENS = 2**26
"""Tokens in a final shard, at most; a merge holds some three times that many ids in memory."""

MAX_PARTITION_BITS = 16


@dataclass(frozen=True)
class ShufflePlan:
    """How a shuffle is done: `spilled` are the shards for the first pass, none when one pass is enough."""

    shards: tuple[Shard, ...]
    context: int
    rows_per_shard: int
    num_tokens: int
    partition_bits: int
    one_pass: bool

    @property
    def spilled(self) -> tuple[Shard, ...]:
        """The token shards that `spill_shard` must spill."""
        return () if self.one_pass else self.shards

    @property
    def num_rows(self) -> int:
        """Rows that hold every token of the stream but the first as a target."""
        return -(-(self.num_tokens - 1) // self.context)


def plan(shards: Sequence[Shard], *, context: int, shard_tokens: int = SHARD_TOKENS) -> ShufflePlan:
    """Return how to shuffle token shards; of its choices only `shard_tokens` changes the result."""
    num_tokens = sum(_value(shard)["tokens"] for shard in shards)
    if num_tokens < 2:
        raise DataError(f"{num_tokens} tokens make no row", hint="give more documents")
    rows_per_shard = max(1, shard_tokens // context)
    num_rows = -(-(num_tokens - 1) // context)
    num_shards = -(-num_rows // rows_per_shard)
    # Eight partitions a final shard: a merge reads at most a fourth more than it writes.
    bits = min((8 * num_shards - 1).bit_length(), MAX_PARTITION_BITS)
    return ShufflePlan(tuple(shards), context, rows_per_shard, num_tokens, bits, num_shards == 1)


def spill_shard(shard: Shard, output: Output, *, seed: int, partition_bits: int) -> Json:
    """Spill a token shard sorted by key, in 2^bits partitions; returns what `write_spill` does."""
    pieces = read_pieces(shard).sorted(seed)
    keys = pieces.keys(seed)
    borders = np.arange(1, 2**partition_bits, dtype=np.uint64) << np.uint64(64 - max(1, partition_bits))
    return write_spill(output, pieces, [*np.searchsorted(keys, borders).tolist(), len(keys)])


def reduce_inputs(spills: Sequence[Shard], plan: ShufflePlan) -> list[Shard]:
    """Return the input of each merge: files, and which part of each belongs to which part of the stream.

    `spills` are the results of `spill_shard` on `plan.spilled`, in any order.
    """
    if plan.one_pass:
        return [whole_input(plan.shards, {"skip": 0, "first_row": 0, "rows": plan.num_rows})]
    stream = Stream.of(spills, "tokens")
    inputs = []
    for first in range(0, plan.num_rows, plan.rows_per_shard):
        rows = min(plan.rows_per_shard, plan.num_rows - first)
        start, stop = first * plan.context, min((first + rows) * plan.context + 1, plan.num_tokens)
        inputs.append(stream.merge_input(start, stop, {"first_row": first, "rows": rows}))
    return inputs


@dataclass(frozen=True)
class Stream:
    """Spills whose partitions, one after another, are the stream; counted in `unit`, which is tokens or documents."""

    spills: Sequence[Shard]
    begins: np.ndarray
    """Where each partition begins in the stream, and the end, int64."""

    @classmethod
    def of(cls, spills: Sequence[Shard], unit: str) -> "Stream":
        """Return the stream of spills that are given in any order."""
        ordered = sorted(spills, key=lambda spill: spill.digest)
        return cls(ordered, np.array([_value(spill)[unit] for spill in ordered]).sum(axis=0))

    def merge_input(self, start: int, stop: int, part: Mapping[str, Json]) -> Shard:
        """Return the input of a merge that needs units [start, stop) of the stream; `part` says what for."""
        low = int(np.searchsorted(self.begins, start, side="right")) - 1
        high = int(np.searchsorted(self.begins, stop, side="left"))
        parts = [SpillPart.of(spill.value, low, high) for spill in self.spills]
        files = [file for spill, each in zip(self.spills, parts, strict=True) for file in spill_files(spill, each)]
        return bundle(files, {**part, "skip": start - int(self.begins[low]), "spills": [list(each) for each in parts]})


def whole_input(shards: Sequence[Shard], part: Mapping[str, Json]) -> Shard:
    """Return the input of a merge of whole token shards."""
    return bundle([shard.file(name) for shard in shards for name in (TOKENS, INDEX)], {**part, "spills": None})


def read_input(shard: Shard, seed: int) -> Pieces:
    """Return the documents of a merge's input, sorted; those it needs begin after the first `skip` units."""
    spills = _value(shard)["spills"]
    if spills is None:
        pairs = [Shard("", "", shard.files[at : at + 2]) for at in range(0, len(shard.files), 2)]
        return join([read_pieces(pair) for pair in pairs]).sorted(seed)
    read, at = [], 0
    for part in map(SpillPart.read, spills):
        files = shard.files[at : at + len(part.names)]
        read.append(read_spill(files, part))
        at += len(files)
    return join(read).sorted(seed)


def merge_partition(shard: Shard, output: Output, *, seed: int, context: int) -> Json:
    """Write one final shard of rows from its part of every spill (or token shard)."""
    part, pieces = _value(shard), read_input(shard, seed)
    length = min(part["rows"] * context + 1, pieces.num_tokens - part["skip"])
    return write_rows(output, pieces.cut(part["skip"], length), context=context, first_row=part["first_row"], seed=seed)


def total(records: Any, tokens_meta: Any, *, context: int, seed: int) -> dict[str, Any]:  # Any: JSON
    """Return the record of the Sequences: how many, of what, and the tokenizer's numbers."""
    sums = counts.add(records)
    inherited = {name: tokens_meta[name] for name in ("vocab_size", "dtype", "eos", "eos_id", "bytes")}
    return {
        **inherited,
        "documents": tokens_meta["documents_out"],
        "num_tokens": tokens_meta["tokens"],
        "num_sequences": sums["rows"],
        "num_target_tokens": sums["targets"],
        "context": context,
        "seed": seed,
    }


def _value(shard: Shard) -> Any:  # Any: the JSON that the shard's function returned
    return shard.value
