"""Parquet files as documents: a row a document, read by row group.

The named problems are those of JSON lines where the meaning is the same (`missing_text`, `text_not_a_string`,
`missing_id`, `invalid_utf8`, `too_long`), and of Parquet alone `not_parquet`, `parquet_damaged`, `missing_column`,
`meta_not_json`. What is damaged in a row group costs the rows of that group from there on, and no other group.
Invariant: which documents a row group gives is a function of its bytes, not of how many rows are in memory at once.
"""

import io
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any, NamedTuple, Protocol

import orjson
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from marin.base.errors import did_you_mean
from marin.data.arrow_json import json_type
from marin.data.documents import Batch
from marin.data.parse import MAX_DOCUMENT_BYTES, Problem

MAGIC = b"PAR1"

BATCH_BYTES = 8 * 2**20
"""Decompressed bytes of a row group that are taken at once, as far as its footer tells their mean."""

BATCH_ROWS = 1024
"""Rows taken at once at most: a dictionary can make any number of large texts of a few bytes."""

_REFUSED = (pa.lib.ArrowException, OSError)
_NO_JSON = (pa.lib.ArrowInvalid, UnicodeDecodeError, OverflowError, ValueError)


class Source(Protocol):
    """A file that is open for reading and can be read at any place."""

    def read(self, size: int = -1, /) -> bytes: ...

    def seek(self, offset: int, whence: int = 0, /) -> int: ...


class Columns(NamedTuple):
    """Which columns of a row become what, nested as `a.b`, and how long a text may be."""

    text: str
    id: str | None = None
    """None: documents are named by path and row."""
    meta: Sequence[str] | None = None
    """Whole columns that become `meta`; None: all that is left."""
    max_bytes: int = MAX_DOCUMENT_BYTES


class Row(NamedTuple):
    """A row that is looked at alone."""

    number: int
    text: bytes | None
    id: str | int | None
    meta: str | None


class RowGroup(NamedTuple):
    """Rows and stored bytes of a row group."""

    rows: int
    bytes: int


def row_groups(source: Source) -> list[RowGroup]:
    """Return the row groups of a Parquet file in order; none when it cannot be opened, for `read_rows` to say why."""
    try:
        with _opened(source) as table:
            found = [table.metadata.row_group(number) for number in range(table.num_row_groups)]
            return [RowGroup(group.num_rows, _stored_bytes(group)) for group in found]
    except pa.lib.ArrowMemoryError:
        raise  # says something of this machine, not of the file
    except _REFUSED:
        return []


def _stored_bytes(group: Any) -> int:  # Any: pyarrow's metadata of a row group
    return sum(group.column(number).total_compressed_size for number in range(group.num_columns))


def _opened(source: Source) -> Any:  # Any: a pyarrow ParquetFile
    # No threads and no reading ahead: marin/graph/artifact.py says why. INT96 in nanoseconds would wrap in 2262.
    return parquet.ParquetFile(
        source, pre_buffer=False, page_checksum_verification=True, coerce_int96_timestamp_unit="us"
    )


def read_rows(source: Source, path: str, columns: Columns, groups: range | None = None) -> Iterator[Batch | Problem]:
    """Yield the documents of row groups, all by default, in batches; `source` can be read at any place."""
    problem = _not_parquet(source, path)
    if problem is not None:
        yield problem
        return
    try:
        table = _opened(source)
    except pa.lib.ArrowMemoryError:
        raise
    except _REFUSED as error:
        yield Problem("parquet_damaged", f"its footer cannot be read: {_said(error)}", path, 0, 0, b"", unit="row")
        return
    with table:
        sizes = [table.metadata.row_group(number).num_rows for number in range(table.num_row_groups)]
        for number in range(len(sizes)) if groups is None else groups:
            yield from _read_group(table, number, sum(sizes[:number]) + 1, path, columns)


def _not_parquet(source: Source, path: str) -> Problem | None:
    source.seek(0)
    head = source.read(len(MAGIC))
    source.seek(max(0, source.seek(0, io.SEEK_END) - len(MAGIC)))
    tail = source.read(len(MAGIC))
    source.seek(0)
    if head == MAGIC == tail:
        return None
    if head == MAGIC:
        detail = "it begins like Parquet and does not end so: it was cut off"
        return Problem("parquet_damaged", detail, path, 0, 0, b"", unit="row")
    seen = f"begins with {head.hex(' ')}" if head else "is empty"
    hint = "give it to `Files` if it holds lines or text."
    return Problem("not_parquet", f"it is not Parquet: it {seen}", path, 0, 0, b"", hint, unit="row")


def _read_group(table: Any, number: int, row: int, path: str, columns: Columns) -> Iterator[Batch | Problem]:
    # Any: a pyarrow ParquetFile
    group, schema = table.metadata.row_group(number), table.schema_arrow
    last = row + group.num_rows
    if not group.num_rows:
        return
    problem = _unfit(schema, path, columns)
    if problem is not None:
        yield problem._replace(line=row, documents=group.num_rows)
        return
    meta = _meta_names(schema, columns)
    wanted = dict.fromkeys([*(name.split(".")[0] for name in (columns.text, columns.id) if name), *meta])
    rows_at_once = min(BATCH_ROWS, max(1, BATCH_BYTES * group.num_rows // max(1, group.total_byte_size)))
    try:
        for batch in table.iter_batches(rows_at_once, row_groups=[number], columns=list(wanted), use_threads=False):
            yield from _documents(pa.table(batch), row, path, columns, meta)
            row += batch.num_rows
    except pa.lib.ArrowMemoryError:
        raise
    except _REFUSED as error:
        detail = f"row group {number} cannot be read from here on: {_said(error)}"
        yield Problem("parquet_damaged", detail, path, row, 0, b"", unit="row", documents=last - row)


def _unfit(schema: pa.Schema, path: str, columns: Columns) -> Problem | None:
    """Return what makes every row of this schema a problem."""

    def problem(reason: str, detail: str, hint: str = "") -> Problem:
        return Problem(reason, detail, path, 0, 0, b"", hint, unit="row")

    for name in schema.names:
        if schema.names.count(name) > 1:
            return problem("duplicate_column", f"{schema.names.count(name)} columns are called `{name}`")
    for name, missing in ((columns.text, "missing_text"), (columns.id, "missing_id")):
        if name is None:
            continue
        found = _type_at(schema, name)
        if isinstance(found, _Missing):
            has = ", ".join(f"`{each}`" for each in found.known[:20]) or "no columns"
            hint = did_you_mean(found.name.rpartition(".")[2], found.known)
            return problem(missing, f"no column `{found.name}`; it has {has}", hint)
        if name == columns.text and not _is_text(found):
            return problem("text_not_a_string", f"column `{name}` holds {found}")
        if name == columns.id and not (_is_text(found) or pa.types.is_integer(found)):
            return problem("missing_id", f"column `{name}` holds {found}, not strings or whole numbers")
    for name in _meta_names(schema, columns):
        if name not in schema.names:
            return problem("missing_column", f"no column `{name}`", did_you_mean(name, schema.names))
        if json_type(schema.field(name).type) is None:
            detail = f"column `{name}` holds {schema.field(name).type}, which is nothing that JSON can hold"
            return problem("meta_not_json", detail, "name the columns that become `meta`, such as meta=[].")
    return None


class _Missing(NamedTuple):
    """The part of a name that is not there, and what is there in its place."""

    name: str
    known: list[str]


def _type_at(schema: pa.Schema, name: str) -> Any:  # Any: a pyarrow DataType, or _Missing
    parts = name.split(".")
    fields = {field.name: field.type for field in schema}
    for depth, part in enumerate(parts):
        if part not in fields:
            return _Missing(".".join(parts[: depth + 1]), list(fields))
        found = fields[part]
        is_struct = pa.types.is_struct(found)
        fields = {inner.name: inner.type for inner in found} if is_struct else {}
    return found


def _is_text(kind: Any) -> bool:  # Any: a pyarrow DataType
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    # Files of before the string type was agreed on hold text as bytes: each is decoded, and may fail alone.
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)) or bool(
        pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind)
    )


def _meta_names(schema: pa.Schema, columns: Columns) -> list[str]:
    if columns.meta is not None:
        return list(columns.meta)
    taken = {name for name in (columns.text, columns.id) if name and "." not in name}
    return [name for name in schema.names if name not in taken]


class Rows(NamedTuple):
    """What rows hold, a list a column; None where there is nothing to take."""

    texts: list[bytes | None]
    ids: Sequence[str | int | None]
    metas: list[str | None]


def _take_all(rows: Rows, path: str, columns: Columns) -> Batch | None:
    """Return the documents of rows that are all good; None when one of them is not."""
    texts = [text for text in rows.texts if text is not None and len(text) <= columns.max_bytes]
    metas = [meta for meta in rows.metas if meta is not None]
    if not len(texts) == len(metas) == len(rows.ids) or None in rows.ids:
        return None
    try:
        return Batch(path, list(map(str, rows.ids)), [text.decode() for text in texts], metas)
    except UnicodeDecodeError:
        return None


def _documents(table: pa.Table, row: int, path: str, columns: Columns, meta: list[str]) -> Iterator[Batch | Problem]:
    texts = _bytes_at(table, columns.text)
    ids = _ids(table, columns, row, path)
    metas = _metas(table, columns, meta)
    taken = _take_all(Rows(texts, ids, metas), path, columns)
    if taken is not None:
        yield taken
        return
    kept = Batch(path, [], [], [])
    for each in map(Row, range(row, row + len(texts)), texts, ids, metas):
        item = _document(each, path, columns)
        if isinstance(item, Problem):
            yield item
            continue
        for column, value in zip((kept.ids, kept.texts, kept.metas), (str(each.id), item, each.meta), strict=True):
            column.append(str(value))
    if kept.ids:
        yield kept


def _document(row: Row, path: str, columns: Columns) -> str | Problem:
    """Return the text of one row, or why there is none."""

    def problem(reason: str, detail: str, data: bytes, hint: str = "") -> Problem:
        return Problem(reason, detail, path, row.number, 0, data, hint, unit="row")

    if row.text is None:
        return problem("missing_text", f"`{columns.text}` is null", (row.meta or "").encode())
    if row.id is None:
        return problem("missing_id", f"`{columns.id}` is null", row.text)
    if len(row.text) > columns.max_bytes:
        detail = f"the text is longer than the {columns.max_bytes} bytes allowed"
        return problem("too_long", detail, b"", "give a larger `max_document_bytes`.")
    if row.meta is None:
        hint = "name the columns that become `meta`, such as meta=[]."
        return problem("meta_not_json", "another column holds a value that JSON cannot hold", row.text, hint)
    try:
        return row.text.decode()
    except UnicodeDecodeError as error:
        detail = f"byte 0x{row.text[error.start]:02x} at offset {error.start} of the text is not UTF-8"
        return problem("invalid_utf8", detail, row.text)


def _column(table: pa.Table, name: str) -> pa.ChunkedArray:
    """Return a column, nested as `a.b`; null where a struct on the way is."""
    first, *inner = name.split(".")
    column = table.column(first)
    column = pc.struct_field(column, inner) if inner else column
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    return column


def _bytes_at(table: pa.Table, name: str) -> list[bytes | None]:
    values: list[bytes | None] = _column(table, name).cast(pa.large_binary()).to_pylist()
    return values


def _ids(table: pa.Table, columns: Columns, row: int, path: str) -> Sequence[str | int | None]:
    if columns.id is None:
        return [f"{path}:{number}" for number in range(row, row + table.num_rows)]
    column = _column(table, columns.id)
    if pa.types.is_integer(column.type):
        numbers: list[int | None] = column.to_pylist()
        return numbers
    # An id need not be read again: what is no UTF-8 in it is shown as escapes, which keeps ids apart.
    values = _bytes_at(table, columns.id)
    return [None if value is None else value.decode("utf-8", "backslashreplace") for value in values]


def _metas(table: pa.Table, columns: Columns, meta: list[str]) -> list[str | None]:
    if not meta:
        return ["{}"] * table.num_rows
    kept = table.select(meta)
    try:
        return [*_as_json(kept, columns)]
    except _NO_JSON:  # a year of five digits, a string that is no UTF-8: it costs its row
        return [_one_as_json(kept.slice(row, 1), columns) for row in range(kept.num_rows)]


def _one_as_json(row: pa.Table, columns: Columns) -> str | None:
    try:
        return _as_json(row, columns)[0]
    except _NO_JSON:
        return None


def _as_json(table: pa.Table, columns: Columns) -> list[str]:
    schema = pa.schema([(field.name, json_type(field.type)) for field in table.schema])
    records: list[dict[str, Any]] = table.cast(schema, safe=False).to_pylist()
    for name in (columns.text, columns.id):
        if name is not None and "." in name:
            for record in records:
                _take_out(record, name.split("."))
    return [orjson.dumps(record, default=_plain, option=orjson.OPT_SORT_KEYS).decode() for record in records]


def _take_out(record: Any, parts: list[str]) -> None:  # Any: a row's value
    *outer, last = parts
    for part in outer:
        record = record.get(part) if isinstance(record, dict) else None
    if isinstance(record, dict):
        record.pop(last, None)


def _plain(value: object) -> str:
    if isinstance(value, Decimal):
        return str(value)
    raise TypeError(type(value).__name__)


def _said(error: BaseException) -> str:
    return str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else type(error).__name__
