"""The JSON type of every record, and its one text form."""

import json
from collections.abc import Mapping, Sequence
from typing import TypeAlias

# Made once: `json.dumps` makes an encoder for each call with options of its own, which is half of what it costs.
_COMPACT = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
_PRETTY = json.JSONEncoder(sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False)

Json: TypeAlias = bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"] | None


def dumps(value: Json) -> str:
    """Return `value` as compact JSON with sorted keys; equal values give equal text.

    Raises ValueError for nan and infinity: they are no JSON, so canonical values spell them out.
    """
    return _COMPACT.encode(value)


def pretty(value: Json) -> str:
    """Return `value` as indented JSON with sorted keys, for records that people read."""
    return _PRETTY.encode(value) + "\n"
