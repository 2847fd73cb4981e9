"""Documents on disk: one Parquet file a shard, columns id, text, source, meta.

Invariant: the bytes of a file are a function of its rows alone (fixed compression, encoding and row groups). Rows are
gathered by bytes, not by number, so that memory is bounded by one row group and the largest document. This module
does not know where documents come from or what becomes of them.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO, NamedTuple

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


class Batch(NamedTuple):
    """Documents of one source, a list a column: less work each than a `Document` (fields as there)."""

    source: str
    ids: list[str]
    texts: list[str]
    metas: list[str]


def write_documents(output: Output, documents: Iterable[Document]) -> None:
    """Write the documents in order as one Parquet file; streams, and an error leaves no file."""
    with output.open(DOCUMENTS) as file, _parquet_writer(file) as writer:
        for group in by_size(documents, ROW_GROUP_CHARACTERS):
            _write_group(writer, list(zip(*group, strict=True)))


@contextmanager
def open_documents(output: Output) -> Iterator["DocumentWriter"]:
    """Give a writer of batches; the file is the one that `write_documents` makes of the same documents."""
    with output.open(DOCUMENTS) as file, _parquet_writer(file) as writer:
        gathered = DocumentWriter(writer)
        yield gathered
        gathered.flush()


class DocumentWriter:
    """Gathers batches into row groups; `flush` writes the last one."""

    def __init__(self, writer: Any) -> None:  # Any: a pyarrow ParquetWriter
        self._writer = writer
        self._size = 0
        self._columns: tuple[list[str], ...] = ([], [], [], [])

    def add(self, batch: Batch) -> None:
        """Append documents."""
        size = sum(map(len, batch.texts))
        sources = [batch.source] * len(batch.ids)
        if self._size + size < ROW_GROUP_CHARACTERS:
            for column, values in zip(self._columns, (batch.ids, batch.texts, sources, batch.metas), strict=True):
                column.extend(values)
            self._size += size
            return
        for row in zip(batch.ids, batch.texts, sources, batch.metas, strict=True):
            for column, value in zip(self._columns, row, strict=True):
                column.append(value)
            self._size += len(row[1])
            if self._size >= ROW_GROUP_CHARACTERS:
                self.flush()

    def flush(self) -> None:
        """Write what is gathered as a row group."""
        if self._columns[0]:
            _write_group(self._writer, self._columns)
            self._columns, self._size = ([], [], [], []), 0


def _parquet_writer(file: BinaryIO) -> Any:  # Any: a pyarrow ParquetWriter
    return parquet.ParquetWriter(
        file,
        SCHEMA,
        compression="zstd",
        compression_level=3,
        use_dictionary=["source"],
        write_statistics=False,
    )


def _write_group(writer: Any, columns: Sequence[Sequence[str]]) -> None:  # Any: as above
    arrays = [pa.array(column, pa.large_string()) for column in columns]
    writer.write_table(pa.Table.from_arrays(arrays, schema=SCHEMA), row_group_size=len(arrays[0]))


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
