"""The shard cache: outputs of one function on one input shard, shared by all runs and corpora of a store.

Invariant: a shard is committed by one create-only record, like an artifact; what exists is reused by content. A shard
of an upstream store is given as it lies there; nothing is written for it.
"""

from collections.abc import Mapping, Sequence

from marin import fs
from marin.base.json import Json
from marin.graph.files import Shard
from marin.store import layout, records
from marin.store.manifest import placed_shard, read_shard, shard_digest, shard_record, unplaced_shard
from marin.store.presence import present, present_each

KIND = "shard"
AT_ONCE = 8192
"""Shards that are looked up together: enough to keep every connection busy, few enough to hold."""


class ShardCache:
    """Committed shards by shard fingerprint."""

    def __init__(self, root: str, upstreams: Sequence[str] = ()) -> None:
        self._root = root
        self._upstreams = upstreams

    def get(self, fingerprint: str) -> Shard | None:
        """Return a committed shard whose files are there; None otherwise."""
        return self.get_many([fingerprint]).get(fingerprint)

    def get_many(self, fingerprints: Sequence[str]) -> Mapping[str, Shard]:
        """Return those that are committed here or upstream and whose files are there, by fingerprint."""
        found: dict[str, Shard] = {}
        for root in (self._root, *self._upstreams):
            if missing := [fingerprint for fingerprint in fingerprints if fingerprint not in found]:
                found.update(_get_many(root, missing))
        return found

    def output(self, fingerprint: str, attempt: str) -> fs.FolderOutput:
        """Return the private folder in which an attempt writes this shard."""
        owner = layout.shard_folder(self._root, fingerprint)
        return fs.FolderOutput(layout.attempt_folder(owner, f"{attempt}-{fs.unique()}"))

    def commit(self, fingerprint: str, name: str, output: fs.FolderOutput, value: Json) -> Shard:
        """Commit what was written and returned; gives the winner when another committed first."""
        shard = Shard(name, shard_digest(output.files, value), output.files, value)
        plain = shard_record(unplaced_shard(self._root, shard))
        data = records.encode(KIND, {"fingerprint": fingerprint, "shard": plain})
        url = _record(self._root, fingerprint)
        while not fs.create(url, data):
            try:
                stored = fs.read(url)
            except fs.NotFound:
                continue
            winner = _decoded(stored, fingerprint, self._root)
            if winner is not None and present(winner.files):
                return winner
            # Damaged, or its files are gone: nobody can use it, so it makes way.
            fs.delete_unchanged(url, stored)
        return shard


def _get_many(root: str, fingerprints: Sequence[str]) -> dict[str, Shard]:
    found: dict[str, Shard] = {}
    for start in range(0, len(fingerprints), AT_ONCE):
        urls = {_record(root, fingerprint): fingerprint for fingerprint in fingerprints[start : start + AT_ONCE]}
        decoded = fs.decode_many(urls, lambda url, data: _decoded(data, urls[url], root))  # noqa: B023  used here only
        there = present_each([shard.files for shard in decoded.values()])
        found |= {urls[url]: shard for (url, shard), is_there in zip(decoded.items(), there, strict=True) if is_there}
    return found


def _decoded(data: bytes, fingerprint: str, root: str) -> Shard | None:
    record = records.decode(data, KIND, where=_record(root, fingerprint))
    if record is None or record.get("fingerprint") != fingerprint:
        return None
    try:
        return placed_shard(root, read_shard(record["shard"]))
    except (KeyError, TypeError, ValueError):
        return None


def _record(root: str, fingerprint: str) -> str:
    return fs.join(layout.shard_folder(root, fingerprint), "manifest.json")
