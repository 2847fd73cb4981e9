"""Bytes of external files as documents: a whole file, or one JSON object a line.

What each kind of bad input means is defined here, by a `Problem` with a stable reason that counts are kept under:
`invalid_utf8`, `invalid_json`, `lone_surrogate`, `not_an_object`, `missing_text`, `text_not_a_string`,
`archive_damaged`. Kept as they are and only noted: CRLF, NUL. Taken off: a byte order mark at the start of a file.
Blank lines are no documents. Parsing knows no policy: it yields problems, and the caller decides.
"""

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import orjson

from marin.base.errors import did_you_mean
from marin.data.documents import Document
from marin.data.sources import BOM, Damaged, Line, read_lines, read_whole
from marin.graph.files import FileRef


class Problem(NamedTuple):
    """A document that cannot be taken: why, and where its bytes begin in the decompressed file."""

    reason: str
    detail: str
    path: str
    line: int
    """From 1; 0 for a whole file."""
    offset: int
    data: bytes
    hint: str = ""


def parse_whole(file: FileRef, notes: Counter[str]) -> Iterator[Document | Problem]:
    """Yield the file as one document, its path as id and source."""
    try:
        data = read_whole(file)
    except Damaged as error:
        yield Problem("archive_damaged", error.reason, file.path, 0, error.offset, b"")
        return
    begin = _bom_length(data, notes)
    text = _decode(data[begin:], file.path, 0, begin)
    yield text if isinstance(text, Problem) else Document(file.path, text, file.path)


def parse_lines(file: FileRef, field: str, notes: Counter[str]) -> Iterator[Document | Problem]:
    """Yield a document for each JSON line; `field` holds the text, nested as `a.b`; the other fields become `meta`."""
    try:
        for line in read_lines(file):
            begin = _bom_length(line.data, notes) if line.number == 1 else 0
            if line.data[begin:].strip():
                yield _parse_line(Line(line.number, line.offset + begin, line.data[begin:]), file.path, field)
            else:
                notes["blank_lines"] += 1
    except Damaged as error:
        yield Problem("archive_damaged", error.reason, file.path, 0, error.offset, b"")


def _parse_line(line: Line, path: str, field: str) -> Document | Problem:
    def problem(reason: str, detail: str, hint: str = "") -> Problem:
        return Problem(reason, detail, path, line.number, line.offset, line.data, hint)

    try:
        record = orjson.loads(line.data)
    except orjson.JSONDecodeError as error:
        return _explain(line, path, str(error))
    if not isinstance(record, dict):
        return problem("not_an_object", f"the line holds {_json_type(record)}, not an object")
    *outer, last = field.split(".")
    holder: Any = record  # Any: parsed JSON
    for depth, name in enumerate([*outer, last]):
        known = list(holder) if isinstance(holder, dict) else []
        value = holder[name] if name in known else None
        if value is None:
            missing = ".".join([*outer, last][: depth + 1])
            has = ", ".join(f"`{key}`" for key in known[:20]) or "no fields"
            return problem("missing_text", f"no field `{missing}`; it has {has}", did_you_mean(name, known))
        inside, holder = holder, value
    if not isinstance(value, str):
        return problem("text_not_a_string", f"`{field}` holds {_json_type(value)}")
    del inside[last]
    return Document(f"{path}:{line.number}", value, path, orjson.dumps(record, option=orjson.OPT_SORT_KEYS).decode())


def _explain(line: Line, path: str, message: str) -> Problem:
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
