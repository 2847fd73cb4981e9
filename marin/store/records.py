"""Records: JSON objects with sorted keys, a schema number, a kind, and a checksum of themselves.

Invariant: a torn, empty, foreign or altered record is a miss with a warning, never a crash and never believed. What is
believed has the fields of its model.
"""

import hashlib
import json
import logging
from collections.abc import Mapping
from typing import Any

from marin import fs
from marin.base.json import Json, dumps, pretty
from marin.store.models import problem_with

log = logging.getLogger(__name__)

SCHEMA = 1


def encode(kind: str, record: Mapping[str, Json]) -> bytes:
    """Return a record as the bytes to store."""
    plain = {**record, "schema": SCHEMA, "kind": kind}
    # A file name that is no UTF-8 reaches us as lone surrogates; they come back from JSON as they were.
    return pretty({**plain, "checksum": _checksum(plain)}).encode("utf-8", "surrogatepass")


def decode(data: bytes, kind: str, *, where: str) -> dict[str, Any] | None:  # Any: JSON
    """Return the record, or None with a warning when it cannot be believed."""
    record, problem = _read(data, kind)
    if problem:
        log.warning("%s %s; it is passed over, as if it were not there", where, problem)
        return None
    return {key: value for key, value in record.items() if key not in ("schema", "kind", "checksum")}


def problem_of(data: bytes, kind: str) -> str | None:
    """Return why a record cannot be believed, such as `is empty`; None for one that can."""
    return _read(data, kind)[1]


def _read(data: bytes, kind: str) -> tuple[dict[str, Any], str | None]:  # Any: JSON
    try:
        record = json.loads(data)
        return record, _problem(record, kind)
    except (ValueError, RecursionError):
        return {}, "is no JSON" if data else "is empty"


def load(url: str, kind: str) -> dict[str, Any] | None:  # Any: JSON
    """Return the record at a URL; None when there is none, or with a warning when it cannot be believed."""
    try:
        data = fs.read(url)
    except fs.NotFound:
        return None
    return decode(data, kind, where=url)


def _problem(record: object, kind: str) -> str | None:
    if not isinstance(record, dict) or record.get("kind") != kind:
        return f"is no {kind} record"
    if record.get("schema") != SCHEMA:
        return f"has schema {record.get('schema')!r}, and this marin reads schema {SCHEMA}"
    claimed = record.pop("checksum", None)
    if claimed != _checksum(record):
        return "does not match its checksum"
    return problem_with(kind, record)


def _checksum(record: Mapping[str, Json]) -> str:
    return hashlib.sha256(dumps(record).encode("utf-8", "surrogatepass")).hexdigest()[:32]
