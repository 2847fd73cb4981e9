"""Counts that balance: documents in = documents out + dropped by reason.

Every shard function returns its counts as JSON, and `total` adds them up for the artifact's record. Invariant: the
counts of a shard are a function of its input, so they may be part of its digest.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from marin.base.errors import DataError
from marin.base.json import Json


@dataclass
class Counts:
    """What became of the documents of one shard; `bytes` is UTF-8 text kept, `notes` counts what was seen and kept."""

    documents_out: int = 0
    bytes: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    notes: Counter[str] = field(default_factory=Counter)

    def keep(self, text: str) -> None:
        """Count a document that is kept."""
        self.documents_out += 1
        self.bytes += len(text.encode())

    def drop(self, reason: str) -> None:
        """Count a document that is dropped."""
        self.dropped[reason] += 1

    def record(self) -> dict[str, Json]:
        """Return the counts as JSON."""
        return {
            "documents_in": self.documents_out + self.dropped.total(),
            "documents_out": self.documents_out,
            "bytes": self.bytes,
            "dropped": dict(sorted(self.dropped.items())),
            "notes": dict(sorted(self.notes.items())),
        }


def add(records: Iterable[Any]) -> dict[str, Any]:  # Any: JSON of `Counts.record`, perhaps with numbers beside
    """Return the sums of all numbers of the records, nested ones by name; other values are left out."""
    sums: dict[str, Any] = {}
    for record in records:
        _add_to(sums, record)
    return _by_name(sums)


def _add_to(sums: dict[str, Any], record: Mapping[str, Any]) -> None:
    """Add in place: a corpus may have a source a shard, and a copy of all sums for each took minutes for 10,000."""
    for name, value in record.items():
        if isinstance(value, dict):
            _add_to(sums.setdefault(name, {}), value)
        elif isinstance(value, int):
            sums[name] = sums.get(name, 0) + value


def _by_name(sums: dict[str, Any]) -> dict[str, Any]:
    return {name: _by_name(value) if isinstance(value, dict) else value for name, value in sorted(sums.items())}


def total(records: Iterable[Any]) -> dict[str, Any]:  # Any: as in `add`
    """Return the sums over all shards; DataError when no document is left, with what became of them."""
    sums = add(records)
    if not sums.get("documents_out"):
        dropped = ", ".join(f"{count} {reason}" for reason, count in sums.get("dropped", {}).items())
        raise DataError(
            f"no document is left of {sums.get('documents_in', 0)}" + (f" ({dropped})" if dropped else ""),
            hint="give files that hold text, or change the fraction, filter or `on_error` that drops them all",
        )
    return sums
