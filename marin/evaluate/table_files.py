"""JSON-lines and Parquet files as one table: what a task's items are read from.

Invariant: every line becomes a row or the file is refused, with the line and what is wrong with it.
"""

import io
from collections.abc import Sequence
from typing import Any

import orjson
import pyarrow as pa
from pyarrow import parquet

from marin.base.errors import DataError
from marin.data.sources import read_stored
from marin.graph.files import FileRef

BOM = b"\xef\xbb\xbf"


def read_table(files: Sequence[FileRef]) -> pa.Table:
    """Return the rows of all files, in order of path; `.parquet` by suffix, all others are JSON lines.

    Raises DataError for bytes that are not UTF-8, lines that are no JSON object, and fields whose types do not agree.
    """
    tables = [_parquet(file) if file.path.endswith(".parquet") else _json_lines(file) for file in files]
    try:
        return pa.concat_tables(tables, promote_options="permissive").replace_schema_metadata(None)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise DataError(
            f"the files do not make one table: {error}",
            where=", ".join(file.path for file in files),
            hint="give files whose fields have the same types",
        ) from error


def _parquet(file: FileRef) -> pa.Table:
    try:
        return parquet.read_table(io.BytesIO(read_stored(file)), use_threads=False)
    except pa.ArrowInvalid as error:
        raise DataError(
            f"`{file.path}` is no readable Parquet file: {error}", where=file.url, hint="write the file again"
        ) from error


def _json_lines(file: FileRef) -> pa.Table:
    lines = read_stored(file).removeprefix(BOM).split(b"\n")
    rows = [_row(line, file, number) for number, line in enumerate(lines, start=1) if line.strip()]
    names = dict.fromkeys(name for row in rows for name in row)  # from_pylist knows the fields of the first row only
    try:
        return pa.table({name: [row.get(name) for row in rows] for name in names})
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        raise DataError(
            f"a field of `{file.path}` has several types: {error}",
            where=file.url,
            hint="give each field one type in all lines",
        ) from error


def _row(data: bytes, file: FileRef, number: int) -> dict[str, Any]:
    where = f"{file.path}, line {number}"
    try:
        row = orjson.loads(data.decode())
    except UnicodeDecodeError as error:
        what = f"the line is not UTF-8: {error.reason} at byte {error.start}"
        raise DataError(what, where=where, hint="convert the file to UTF-8") from None
    except orjson.JSONDecodeError as error:
        raise DataError(f"the line is no JSON: {error}", where=where, hint="give one JSON object a line") from None
    if not isinstance(row, dict):
        raise DataError("the line holds no JSON object", where=where, hint="give one JSON object a line")
    return row
