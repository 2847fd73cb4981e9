"""The shard cache: outputs of one function on one input shard, shared by all runs and corpora of a store.

Invariant: a shard is committed by one create-only record, like an artifact; what exists is reused by content.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from marin import fs
from marin.base.json import Json
from marin.graph.files import Shard
from marin.store import layout, records
from marin.store.manifest import placed_shard, read_shard, shard_digest, shard_record, unplaced_shard
from marin.store.presence import THREADS, present

KIND = "shard"


class ShardCache:
    """Committed shards by shard fingerprint."""

    def __init__(self, root: str) -> None:
        self._root = root

    def get(self, fingerprint: str) -> Shard | None:
        """Return a committed shard whose files are there; None otherwise."""
        url = self._record(fingerprint)
        try:
            return self._decoded(fs.read(url), fingerprint)
        except fs.NotFound:
            return None

    def _decoded(self, data: bytes, fingerprint: str) -> Shard | None:
        record = records.decode(data, KIND, where=self._record(fingerprint))
        if record is None or record.get("fingerprint") != fingerprint:
            return None
        try:
            shard = placed_shard(self._root, read_shard(record["shard"]))
        except (KeyError, TypeError, ValueError):
            return None
        return shard if present(shard.files) else None

    def get_many(self, fingerprints: Sequence[str]) -> Mapping[str, Shard]:
        """Return those that are committed, by fingerprint."""
        with ThreadPoolExecutor(THREADS) as pool:
            found = zip(fingerprints, pool.map(self.get, fingerprints), strict=True)
            return {fingerprint: shard for fingerprint, shard in found if shard is not None}

    def output(self, fingerprint: str, attempt: str) -> fs.FolderOutput:
        """Return the private folder in which an attempt writes this shard."""
        owner = layout.shard_folder(self._root, fingerprint)
        return fs.FolderOutput(layout.attempt_folder(owner, f"{attempt}-{fs.unique()}"))

    def commit(self, fingerprint: str, name: str, output: fs.FolderOutput, value: Json) -> Shard:
        """Commit what was written and returned; gives the winner when another committed first."""
        shard = Shard(name, shard_digest(output.files, value), output.files, value)
        plain = shard_record(unplaced_shard(self._root, shard))
        data = records.encode(KIND, {"fingerprint": fingerprint, "shard": plain})
        url = self._record(fingerprint)
        while not fs.create(url, data):
            try:
                stored = fs.read(url)
            except fs.NotFound:
                continue
            if winner := self._decoded(stored, fingerprint):
                return winner
            # Damaged, or its files are gone: nobody can use it, so it makes way.
            fs.delete_unchanged(url, stored)
        return shard

    def _record(self, fingerprint: str) -> str:
        return fs.join(layout.shard_folder(self._root, fingerprint), "manifest.json")
