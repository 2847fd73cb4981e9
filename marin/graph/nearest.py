"""The earlier result that differs least from a recipe, found without comparing each with each.

Invariant: the time of a lookup does not grow with the number of earlier results. Results that differ in a single field
are found by hash, each recipe being filed once under all its fields but one; where there is none, the newest few are
compared in depth.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from marin.base.canonical import digest
from marin.graph.explain import Change, changes
from marin.graph.produced import Produced

_COMPARED = 16
_OTHERS = ("artifact", "code", "inputs", "requires")

Record = Mapping[str, Any]  # Any: JSON


class Near(NamedTuple):
    """An earlier result and all that differs."""

    record: Record
    produced: Produced
    changes: tuple[Change, ...]


class Earlier:
    """Earlier results of one step, newest first."""

    def __init__(self, entries: Sequence[tuple[Record, Produced]]) -> None:
        self._entries = entries
        self._filed: dict[tuple[str, str], list[int]] | None = None

    def nearest(self, record: Record, *, name: str) -> Near | None:
        """Return the earlier result that differs least; of equals the one of that name in a plan, then the newest."""
        if not self._entries:
            return None
        if self._filed is None:
            self._filed = {}
            for number, (earlier, _) in enumerate(self._entries):
                for key in _keys(earlier):
                    self._filed.setdefault(key, []).append(number)
        found = {number for key in _keys(record) for number in self._filed.get(key, ())[:_COMPARED]}
        numbers = sorted(found) or range(min(len(self._entries), _COMPARED))
        near = [
            Near(earlier, produced, changes(earlier, record))
            for earlier, produced in (self._entries[number] for number in numbers)
        ]
        return min(near, key=lambda each: (len(each.changes), each.produced.name != name))


def _keys(record: Record) -> Iterator[tuple[str, str]]:
    """Yield what a recipe is filed under: all its fields, and all but one."""
    fields = {f"config {name}": value for name, value in record.get("config", {}).items()}
    fields |= {name: record[name] for name in _OTHERS if name in record}
    texts = {name: digest(value) for name, value in sorted(fields.items())}
    yield "", digest(texts)
    for name in texts:
        yield name, digest({other: text for other, text in texts.items() if other != name})
