"""One global order of all documents, cut into rows of `context` tokens: an external sort in two passes.

The order of documents is that of `order_keys`: a pure function of seed and content. Their tokens, one after another,
are the *stream*; row r holds tokens [r * context, r * context + context] of it, one more than `context`, so that every
token but the stream's first is a target exactly once. Rows are cut into shards of a fixed number of rows and stored
permuted within their shard: rows of one long document, which are neighbours in the stream, do not meet in a batch.

Invariant: the files are byte-identical for any number of input shards, partitions and workers.
First pass (`partition_shard`): a token shard is sorted by key and spilled, one record batch a partition of the keys.
Second pass (`merge_partition`): a final shard reads, from every spill, the partitions that its part of the stream
lies in. When everything fits one final shard, there is no first pass.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from marin.base.errors import DataError
from marin.base.json import Json
from marin.data import counts
from marin.data.hashes import bundle
from marin.data.pieces import join, read_pieces, write_spill
from marin.data.rows import write_rows
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
        """The token shards that `partition_shard` must spill."""
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


def partition_shard(shard: Shard, output: Output, *, seed: int, partition_bits: int) -> Json:
    """Spill a token shard sorted by key, in 2^bits partitions.

    Returns the document and the token at which each partition begins, and the ends.
    """
    pieces = read_pieces(shard).sorted(seed)
    keys = pieces.keys(seed)
    borders = np.array([number << (64 - partition_bits) for number in range(2**partition_bits)], dtype=np.uint64)
    documents = [*np.searchsorted(keys, borders).tolist(), len(keys)]
    starts = np.concatenate([[0], pieces.ends])
    write_spill(output, pieces, documents[1:])
    return {"documents": documents, "tokens": starts[documents].tolist()}


def reduce_inputs(spills: Sequence[Shard], plan: ShufflePlan) -> list[Shard]:
    """Return the input of each merge: files, and which part of each belongs to which part of the stream.

    `spills` are the results of `partition_shard` on `plan.spilled`, in any order.
    """
    if plan.one_pass:
        part: Json = {"ranges": None, "skip": 0, "first_row": 0, "rows": plan.num_rows}
        return [_merge_input(plan.shards, part)]
    spills = sorted(spills, key=lambda spill: spill.digest)
    begins = np.array([_value(spill)["tokens"] for spill in spills])  # [spills, partitions + 1]
    stream = begins.sum(axis=0)  # where each partition begins in the stream
    inputs = []
    for first in range(0, plan.num_rows, plan.rows_per_shard):
        rows = min(plan.rows_per_shard, plan.num_rows - first)
        start, stop = first * plan.context, min((first + rows) * plan.context + 1, plan.num_tokens)
        low = int(np.searchsorted(stream, start, side="right")) - 1
        high = int(np.searchsorted(stream, stop, side="left"))
        ranges = [[low, high, int(begin[low]), int(begin[high])] for begin in begins]
        part = {"ranges": ranges, "skip": start - int(stream[low]), "first_row": first, "rows": rows}
        inputs.append(_merge_input(spills, part))
    return inputs


def merge_partition(shard: Shard, output: Output, *, seed: int, context: int) -> Json:
    """Write one final shard of rows from its part of every spill (or token shard)."""
    part = _value(shard)
    pairs = [Shard("", "", shard.files[at : at + 2]) for at in range(0, len(shard.files), 2)]
    ranges = part["ranges"] or [None] * len(pairs)
    pieces = join([read_pieces(pair, at) for pair, at in zip(pairs, ranges, strict=True)]).sorted(seed)
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


def _merge_input(shards: Sequence[Shard], part: Json) -> Shard:
    return bundle([shard.file(name) for shard in shards for name in (TOKENS, INDEX)], part)


def _value(shard: Shard) -> Any:  # Any: the JSON that the shard's function returned
    return shard.value
