"""Documents on disk: one Parquet file a shard, columns id, text, source, meta.

Invariant: the bytes of a file are a function of its rows alone (fixed compression, encoding and row groups). Rows are
gathered by bytes, not by number, so that memory is bounded by one row group and the largest document. This module
does not know where documents come from or what becomes of them.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa
from pyarrow import parquet

from marin import fs
from marin.graph.files import Output, Shard

DOCUMENTS = "documents.parquet"

SCHEMA = pa.schema([(name, pa.large_string()) for name in ("id", "text", "source", "meta")])
"""`large_string`: int32 offsets break at 2 GiB of text."""

ROW_GROUP_CHARACTERS = 32 * 2**20
"""Text in a row group; also what a reader holds in memory."""


class Document(NamedTuple):
    """One text: `id` names it within its corpus, `source` is the file it came from, `meta` a JSON object as text."""

    id: str
    text: str
    source: str
    meta: str = "{}"


def write_documents(output: Output, documents: Iterable[Document]) -> None:
    """Write the documents in order as one Parquet file; streams, and an error leaves no file."""
    with output.open(DOCUMENTS) as file:
        writer = parquet.ParquetWriter(
            file,
            SCHEMA,
            compression="zstd",
            compression_level=3,
            use_dictionary=["source"],
            write_statistics=False,
        )
        with writer:
            for group in by_size(documents, ROW_GROUP_CHARACTERS):
                columns = [pa.array(column, pa.large_string()) for column in zip(*group, strict=True)]
                writer.write_table(pa.Table.from_arrays(columns, schema=SCHEMA), row_group_size=len(group))


def read_documents(shard: Shard) -> Iterator[Document]:
    """Yield the shard's documents in order, one row group in memory at a time."""
    for batch in read_batches(shard, SCHEMA.names):
        yield from map(Document, *(column.to_pylist() for column in batch.columns))


def read_batches(shard: Shard, columns: Sequence[str]) -> Iterator[pa.Table]:
    """Yield the given columns of the shard, a table a row group."""
    with fs.open_file(shard.file(DOCUMENTS)) as file, parquet.ParquetFile(file, pre_buffer=False) as table:
        for group in range(table.num_row_groups):
            yield table.read_row_group(group, columns=list(columns), use_threads=False).select(list(columns))


def iter_texts(shards: Iterable[Shard]) -> Iterator[str]:
    """Yield the text of every document of all shards, in order."""
    for shard in shards:
        for batch in read_batches(shard, ["text"]):
            yield from batch.column("text").to_pylist()


def by_size(documents: Iterable[Document], num_characters: int) -> Iterator[list[Document]]:
    """Yield the documents in lists that end when they hold that many characters: about bytes, and free to count."""
    group: list[Document] = []
    size = 0
    for document in documents:
        group.append(document)
        size += len(document.text)
        if size >= num_characters:
            yield group
            group, size = [], 0
    if group:
        yield group
