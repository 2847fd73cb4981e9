"""A few of the documents that a step removed or changed, for a person to look at: `removed.jsonl` and the like.

Invariant: which ones is decided by the hash of each, so the same are shown however documents are grouped into shards.
"""

from collections import defaultdict
from collections.abc import Iterable

import orjson

from marin import fs
from marin.base.json import Json
from marin.data.documents import Document
from marin.data.hashes import text_hash
from marin.graph.files import Output, Shard

SHOWN_CHARACTERS = 300

_Line = tuple[int, bytes]


class Samples:
    """At most `limit` of what is offered under each reason: those with the lowest hashes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept: dict[str, list[_Line]] = defaultdict(list)

    def offer(self, reason: str, document: Document, **details: Json) -> None:
        """Take a document, shown by its id, source and first characters, with what else is said of it."""
        if not self._limit:
            return
        order = text_hash(f"{document.id}\0{document.source}\0{document.text}")
        record = {
            "reason": reason,
            "order": order,
            "id": document.id,
            "source": document.source,
            **details,
            "text": document.text[:SHOWN_CHARACTERS],
        }
        self._add(reason, (order, orjson.dumps(record)))

    def take(self, lines: bytes) -> None:
        """Take what another sampler wrote."""
        for line in lines.splitlines():
            record = orjson.loads(line)
            self._add(record["reason"], (record["order"], line))

    def _add(self, reason: str, line: _Line) -> None:
        kept = self._kept[reason]
        kept.append(line)
        if len(kept) > 4 * self._limit:
            self._kept[reason] = sorted(kept)[: self._limit]

    def lines(self) -> bytes:
        """Return what is kept as JSON lines, by reason, then by hash."""
        chosen = (sorted(lines)[: self._limit] for _, lines in sorted(self._kept.items()))
        return b"".join(line + b"\n" for lines in chosen for _, line in lines)

    def write(self, output: Output, path: str) -> None:
        """Write the lines as a file; none when nothing was offered."""
        lines = self.lines()
        if lines:
            output.write(path, lines)


def merge_samples(shards: Iterable[Shard], output: Output, path: str, limit: int) -> None:
    """Write `path` of all shards as one, with at most `limit` a reason."""
    samples = Samples(limit)
    for shard in shards:
        for file in shard.files:
            if file.path == path:
                samples.take(fs.read_file(file))
    samples.write(output, path)


def write_lines(output: Output, path: str, records: Iterable[Json]) -> None:
    """Write records as JSON lines; none, no file."""
    lines = b"".join(orjson.dumps(record) + b"\n" for record in records)
    if lines:
        output.write(path, lines)
