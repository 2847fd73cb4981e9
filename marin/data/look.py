"""Samples of what an artifact holds, decoded, for a person to look at.

Which ones depends on the artifact alone: spread evenly over its shards and inside them, or those from a number on. Only
the shards that are shown are read. Invariant: a sample says where it stands, so that it can be found again.
"""

import json
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
from pyarrow import parquet

from marin import fs
from marin.base.errors import DataError
from marin.data.arrays import open_array
from marin.data.documents import DOCUMENTS, Document
from marin.data.look_rows import RowListing
from marin.data.token_files import INDEX, TOKENS, loss_mask, read_index, read_loss
from marin.data.token_text import pieces, token_bytes
from marin.data.tokenizer import load_tokenizer
from marin.graph.artifact import Artifact, Documents, Sequences, Tokens
from marin.graph.files import Shard

Sample = dict[str, Any]  # Any: JSON
Choose = Callable[[int], Sequence[int]]
"""Which rows of a shard to take, by how many it has."""
Read = Callable[[Shard, Choose], Iterator[Sample]]


def can_show(artifact: Artifact) -> bool:
    """Whether `samples` takes it."""
    return isinstance(artifact, Documents | Tokens | Sequences)


def samples(artifact: Artifact, *, number: int, at: int | None = None, length: int) -> list[Sample]:
    """Return samples of Documents, Tokens or Sequences: `number` spread over all, or from number `at` on.

    Texts are cut after `length` characters, ids after `length` tokens. Each has `shard` and `row`. Of Documents: `id`,
    `source`, `meta`, `text` and its `characters`. Of Tokens: `id`, `source`, `tokens`, the first `ids`, what they stand
    for as `pieces`, and with a loss mask `targets`, a truth value an id. Of Sequences, which are numbered in the order
    of training: `sequence`, `tokens`, their `unit` (a packed row has positions), `padding`, and what lies in the row as
    `documents`, each as in Tokens, with its `offset` inside its document; in a packed row the last target counts.
    """
    if isinstance(artifact, Sequences):
        return list(_sequences(artifact, number, at, length, _texts(artifact)))
    read = _reader(artifact, length)
    shards = artifact.shards
    if at is None:
        return [
            {"shard": place, **sample}
            for place, quota in enumerate(spread(len(shards), number))
            if quota
            for sample in read(shards[place], lambda rows, quota=quota: evenly(rows, quota))  # type: ignore[misc]
        ]
    following = _Following(at, number)
    found: list[Sample] = []
    for place, shard in enumerate(shards):
        if following.left:
            found += [{"shard": place, **sample} for sample in read(shard, following)]
    return found


class _Following:
    """Takes `left` rows, after passing over `ahead`, from shard after shard."""

    def __init__(self, ahead: int, left: int) -> None:
        self.ahead = ahead
        self.left = left

    def __call__(self, rows: int) -> range:
        begin = min(self.ahead, rows)
        end = min(rows, begin + self.left)
        self.ahead -= begin
        self.left -= end - begin
        return range(begin, end)


def spread(num_shards: int, number: int) -> list[int]:
    """Return how many of `number` samples each shard gives."""
    return [number * (at + 1) // num_shards - number * at // num_shards for at in range(num_shards)]


def evenly(rows: int, number: int) -> list[int]:
    """Return at most `number` rows, each in the middle of an equal part."""
    return sorted({(2 * at + 1) * rows // (2 * number) for at in range(number)}) if rows else []


def _reader(artifact: Artifact, length: int) -> Read:
    if isinstance(artifact, Documents):
        return lambda shard, choose: _documents(shard, choose, length)
    if not isinstance(artifact, Tokens):
        raise DataError(
            f"{type(artifact).__name__} holds no documents, tokens or rows",
            hint="give Documents, Tokens or Sequences",
        )
    texts = _texts(artifact)
    return lambda shard, choose: _tokens(shard, choose, length, texts)


def _texts(artifact: Artifact) -> dict[int, bytes]:
    data = artifact.contents.reader.read(artifact.file("tokenizer.json"))
    return token_bytes(load_tokenizer(data))


def _documents(shard: Shard, choose: Choose, length: int) -> Iterator[Sample]:
    with fs.open_file(shard.file(DOCUMENTS)) as file, parquet.ParquetFile(file, pre_buffer=False) as table:
        groups = [table.metadata.row_group(at).num_rows for at in range(table.num_row_groups)]
        ends = list(accumulate(groups))
        held, held_group = None, -1
        for row in choose(ends[-1] if ends else 0):
            group = bisect_right(ends, row)
            if group != held_group:
                held, held_group = table.read_row_group(group, use_threads=False), group
            assert held is not None
            values = held.slice(row - (ends[group] - groups[group]), 1).to_pylist()[0]
            document = Document(*(values[name] for name in Document._fields))
            yield {
                "row": row,
                "id": document.id,
                "source": document.source,
                "meta": json.loads(document.meta),
                "characters": len(document.text),
                "text": document.text[:length],
            }


def _tokens(shard: Shard, choose: Choose, length: int, texts: Mapping[int, bytes]) -> Iterator[Sample]:
    index, array = read_index(shard.file(INDEX)), open_array(shard.file(TOKENS))
    ends = index["end"].to_numpy().astype(np.int64)
    loss = read_loss(index)
    for row in choose(len(ends)):
        begin, end = int(ends[row - 1]) if row else 0, int(ends[row])
        ids = array.read(begin, min(end, begin + length)).tolist()
        sample = {
            "row": row,
            "id": index["id"][row].as_py().hex(),
            "source": index["source"][row].as_py(),
            "tokens": end - begin,
            "ids": ids,
            "pieces": pieces(ids, texts),
        }
        if loss is not None:
            sample["targets"] = loss_mask(loss[row])[: len(ids)].tolist()
        yield sample


def _sequences(
    artifact: Artifact, number: int, at: int | None, length: int, texts: Mapping[int, bytes]
) -> Iterator[Sample]:
    rows = RowListing(artifact.shards)
    chosen = evenly(len(rows), number) if at is None else range(min(at, len(rows)), min(len(rows), at + number))
    for row in rows.read(chosen, length=length):
        documents = []
        for piece in row.pieces:
            ids = piece.ids.tolist()
            document = {
                "id": piece.id,
                "source": piece.source,
                "offset": piece.offset,
                "tokens": piece.tokens,
                "ids": ids,
                "pieces": pieces(ids, texts),
            }
            if piece.is_target is not None:
                document["targets"] = piece.is_target.tolist()
            documents.append(document)
        place = {"shard": row.shard, "row": row.row, "sequence": row.sequence}
        yield {**place, "tokens": row.tokens, "unit": row.unit, "padding": row.padding, "documents": documents}
