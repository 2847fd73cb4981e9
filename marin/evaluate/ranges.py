"""Ranges of documents as shards: what maps over a corpus work on, so that a killed run loses one range at most.

Invariant: ranges are a function of the documents and the two limits alone, and a range reads the row groups that hold
it and no others.
"""

from collections.abc import Sequence
from typing import Any

import pyarrow.compute as pc
from pyarrow import parquet

from marin import fs
from marin.data.documents import DOCUMENTS, SCHEMA, Document, read_batches
from marin.data.hashes import bundle
from marin.graph.files import Shard


def document_ranges(shards: Sequence[Shard], *, num_documents: int, num_bytes: int) -> list[Shard]:
    """Return the documents in ranges that end when they hold so many documents or bytes of text, in order."""
    return [
        bundle(shard.files, [first, last]) for shard in shards for first, last in _cut(shard, num_documents, num_bytes)
    ]


def _cut(shard: Shard, num_documents: int, num_bytes: int) -> list[tuple[int, int]]:
    ranges, first, last, size = [], 0, 0, 0
    for batch in read_batches(shard, ["text"]):
        for length in pc.binary_length(batch.column("text")).to_pylist():
            last, size = last + 1, size + length
            if last - first == num_documents or size >= num_bytes:
                ranges.append((first, last))
                first, size = last, 0
    return [*ranges, (first, last)] if last > first else ranges


def read_range(shard: Shard) -> list[Document]:
    """Return the documents of a shard that `document_ranges` made."""
    value: Any = shard.value  # Any: the first number and the one behind the last
    first, last = value
    documents: list[Document] = []
    with fs.open_file(shard.file(DOCUMENTS)) as file, parquet.ParquetFile(file, pre_buffer=False) as table:
        begin = 0
        for group in range(table.num_row_groups):
            end = begin + table.metadata.row_group(group).num_rows
            if begin < last and first < end:
                rows = table.read_row_group(group, columns=SCHEMA.names, use_threads=False)
                kept = rows.select(SCHEMA.names).slice(max(0, first - begin), min(last, end) - max(first, begin))
                documents += map(Document, *(column.to_pylist() for column in kept.columns))
            begin = end
    return documents
