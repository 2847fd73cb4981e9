"""Bytes of external files as documents: a whole file, or one JSON object a line.

What each kind of bad input means is defined here, by a `Problem` with a stable reason that counts are kept under:
`invalid_utf8`, `invalid_json`, `lone_surrogate`, `not_an_object`, `missing_text`, `text_not_a_string`, `missing_id`,
`too_long`, and of the file as a whole `archive_damaged`, `archive_bomb`, `wrong_suffix`. Kept as they are and only
noted: CRLF, NUL, JSON lines as one document. Taken off: a byte order mark at the start of a file. Blank lines are no
documents. Parsing knows no policy: it yields problems, and the caller decides.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Literal, NamedTuple

import orjson

from marin.base.errors import did_you_mean
from marin.base.json import dumps
from marin.data.codecs import Damaged, is_json_lines
from marin.data.documents import Batch
from marin.data.lines import LineBlock, LongLine
from marin.data.sources import MAX_RATIO, read_whole
from marin.graph.files import FileRef

BOM = b"\xef\xbb\xbf"

MAX_DOCUMENT_BYTES = 2_000_000_000
"""Longest line or file that is taken; memory is about nine times the longest one there is."""


_EXPONENT = re.compile(rb"[0-9]e[+]?[0-9]")
_LARGE_INTEGER = re.compile(rb"[0-9]{19}")


class Fields(NamedTuple):
    """Which fields of a JSON line hold what, nested as `a.b`, and how long a line may be."""

    text: str
    id: str | None = None
    """None: documents are named by path and number of line."""
    max_bytes: int = MAX_DOCUMENT_BYTES


class Problem(NamedTuple):
    """A document that cannot be taken: why, and where its bytes begin in the decompressed file."""

    reason: str
    detail: str
    path: str
    line: int
    """From 1; 0 for a whole file. In Parquet the row, from 1."""
    offset: int
    data: bytes
    hint: str = ""
    unit: Literal["line", "row"] = "line"
    documents: int = 1
    """How many documents it costs; of a file that cannot be opened nobody knows, and it counts as one."""


class _Line(NamedTuple):
    number: int
    offset: int
    data: bytes


def parse_whole(
    file: FileRef, notes: Counter[str], *, max_bytes: int = MAX_DOCUMENT_BYTES, max_ratio: float = MAX_RATIO
) -> Iterator[Batch | Problem]:
    """Yield the file as one document, its path as id and source."""
    try:
        data = read_whole(file, max_bytes=max_bytes, max_ratio=max_ratio)
    except Damaged as error:
        yield damage(file.path, error)
        return
    begin = _bom_length(data, notes)
    if is_json_lines(file.path):
        notes["json_lines_as_one_document"] += 1
    text = _decode(data[begin:] if begin else data, file.path, 0, begin)
    yield text if isinstance(text, Problem) else Batch(file.path, [file.path], [text], ["{}"])


def damage(path: str, error: Damaged) -> Problem:
    """Return the problem of a file that is broken as a whole, or from some offset on."""
    return Problem(error.reason, error.detail, path, 0, error.offset, b"", error.hint)


def parse_lines(
    blocks: Iterable[LineBlock | LongLine], path: str, fields: Fields, notes: Counter[str]
) -> Iterator[Batch | Problem]:
    """Yield the documents of JSON lines in batches; fields beside text and id become `meta`."""
    for block in blocks:
        if isinstance(block, LongLine):
            yield _long(path, block.number, block.offset, fields)
            continue
        begin = _bom_length(block.data, notes) if block.offset == 0 else 0
        data = block.data[begin:] if begin else block.data
        lines = [data] if data.find(b"\n") in (-1, len(data) - 1) else data.split(b"\n")
        if not lines[-1]:
            lines.pop()
        taken = _take_all(lines, block.number, path, fields) if len(data) <= fields.max_bytes else None
        if taken is not None:
            yield taken
        else:
            yield from _take_each(lines, block.number, block.offset + begin, path, fields, notes)


def _take_all(lines: list[bytes], number: int, path: str, fields: Fields) -> Batch | None:
    """Return the documents of lines that are all good; None when one of them is not, or is blank."""
    try:
        records = list(map(orjson.loads, lines))
        texts = _pop_all(records, fields.text)
        ids = None if fields.id is None else _pop_all(records, fields.id)
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError, IndexError):
        return None
    if not set(map(type, records)) <= {dict} or not set(map(type, texts)) <= {str}:
        return None
    if ids is None:
        ids = [f"{path}:{line}" for line in range(number, number + len(lines))]
    elif not set(map(type, ids)) <= {str, int}:
        return None
    metas = [_meta(record, line) if record else "{}" for record, line in zip(records, lines, strict=True)]
    return Batch(path, list(map(str, ids)), texts, metas)


def _meta(record: Any, line: bytes) -> str:  # Any: the fields of a line that are neither text nor id
    """Return the fields as JSON, their whole numbers as they stand in the line.

    orjson reads those beyond 64 bits as floats, which it writes with an exponent.
    """
    meta = orjson.dumps(record, option=orjson.OPT_SORT_KEYS)
    if _EXPONENT.search(meta) and _LARGE_INTEGER.search(line):
        return dumps(_exact(record, json.loads(line)))
    return meta.decode()


def _exact(rounded: Any, exact: Any) -> Any:  # Any: parsed JSON
    """Return what is left of a record, with the whole numbers of the record as it was."""
    if isinstance(rounded, dict):
        return {name: _exact(value, exact[name]) for name, value in rounded.items()}
    if isinstance(rounded, list):
        return list(map(_exact, rounded, exact))
    return exact if isinstance(exact, int) else rounded


def _pop_all(records: list[Any], field: str) -> list[Any]:  # Any: parsed JSON
    *outer, last = field.split(".")
    holders = records
    for name in outer:
        holders = [holder[name] for holder in holders]
    return [holder.pop(last) for holder in holders]


def _take_each(
    lines: list[bytes], number: int, offset: int, path: str, fields: Fields, notes: Counter[str]
) -> Iterator[Batch | Problem]:
    ids: list[str] = []
    texts: list[str] = []
    metas: list[str] = []
    for each in lines:
        data = each.removesuffix(b"\n")  # a line that came alone has it still
        line = _Line(number, offset, data)
        number += 1
        offset += len(data) + 1
        if len(data) > fields.max_bytes:
            yield _long(path, line.number, line.offset, fields)
        elif data.strip():
            item = _parse_line(line, path, fields)
            if isinstance(item, Problem):
                yield item
            else:
                for column, value in zip((ids, texts, metas), item, strict=True):
                    column.append(value)
        else:
            notes["blank_lines"] += 1
    if ids:
        yield Batch(path, ids, texts, metas)


def _long(path: str, number: int, offset: int, fields: Fields) -> Problem:
    detail = f"the line is longer than the {fields.max_bytes} bytes allowed"
    return Problem("too_long", detail, path, number, offset, b"", "give a larger `max_document_bytes`.")


def _parse_line(line: _Line, path: str, fields: Fields) -> tuple[str, str, str] | Problem:
    def problem(reason: str, detail: str, hint: str = "") -> Problem:
        return Problem(reason, detail, path, line.number, line.offset, line.data, hint)

    try:
        record = orjson.loads(line.data)
    except orjson.JSONDecodeError as error:
        return _explain(line, path, str(error))
    if not isinstance(record, dict):
        return problem("not_an_object", f"the line holds {_json_type(record)}, not an object")
    name = f"{path}:{line.number}"
    for field in (fields.text, fields.id):
        if field is None:
            continue
        is_text = field is fields.text
        holder, value, missing = _pop(record, field)
        if missing:
            has = ", ".join(f"`{key}`" for key in holder[:20]) or "no fields"
            detail = f"no field `{missing}`; it has {has}"
            hint = did_you_mean(missing.rpartition(".")[2], holder)
            return problem("missing_text" if is_text else "missing_id", detail, hint)
        if is_text and not isinstance(value, str):
            return problem("text_not_a_string", f"`{field}` holds {_json_type(value)}")
        if not is_text and type(value) is float:
            value = _pop(json.loads(line.data), field)[1]  # as it stands: orjson reads large whole numbers as floats
        if not is_text and type(value) not in (str, int):
            return problem("missing_id", f"`{field}` holds {_json_type(value)}, not a string or whole number")
        if is_text:
            text = value
        else:
            name = str(value)
    return name, text, _meta(record, line.data)


def _pop(record: Any, field: str) -> tuple[list[str], Any, str]:  # Any: parsed JSON
    """Take a field out: (fields beside it, its value, the part of its name that is missing or null)."""
    *outer, last = field.split(".")
    holder: Any = record
    for depth, name in enumerate([*outer, last]):
        known = list(holder) if isinstance(holder, dict) else []
        value = holder[name] if name in known else None
        if value is None:
            return known, None, ".".join([*outer, last][: depth + 1])
        inside, holder = holder, value
    del inside[last]
    return known, value, ""


def _explain(line: _Line, path: str, message: str) -> Problem:
    """Return the problem of a line that orjson refuses; slow, for bad lines only."""
    text = _decode(line.data, path, line.number, line.offset)
    if isinstance(text, Problem):
        return text
    reason = "invalid_json"
    try:
        json.dumps(json.loads(text), ensure_ascii=False).encode()
    except UnicodeEncodeError:
        reason = "lone_surrogate"
    except (ValueError, RecursionError):
        pass
    return Problem(reason, message, path, line.number, line.offset, line.data)


def _decode(data: bytes, path: str, line: int, offset: int) -> str | Problem:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        at = offset + error.start
        detail = f"byte 0x{data[error.start]:02x} at offset {at} is not UTF-8"
        return Problem("invalid_utf8", detail, path, line, at, data)


def _bom_length(data: bytes, notes: Counter[str]) -> int:
    if not data.startswith(BOM):
        return 0
    notes["bom_removed"] += 1
    return len(BOM)


def _json_type(value: Any) -> str:  # Any: parsed JSON
    kinds = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return kinds.get(type(value), "a number")
