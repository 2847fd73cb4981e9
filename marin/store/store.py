"""Store: artifacts, shards, leases and runs below one URL.

Invariant: `manifest.json` is created once, by one winner, after everything it names is whole. Correctness never
depends on leases. Nothing in a store is ever executed.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, NamedTuple, Self

from marin import fs
from marin.base.errors import StoreError
from marin.base.json import Json, pretty
from marin.graph.files import Contents
from marin.store import layout, manifest, records
from marin.store.manifest import Manifest, manifest_contents, placed
from marin.store.presence import THREADS, present
from marin.store.shards import ShardCache


class Commit(NamedTuple):
    """How a commit ended; `manifest` is what stands in the store now."""

    manifest: Manifest
    outcome: Literal["committed", "same", "adopted"]


class Store:
    """One store; make it with `Store.open`."""

    def __init__(self, url: str) -> None:
        self.url = url

    @classmethod
    def open(cls, url: str, *, write: bool) -> Self:
        """Open a store; with `write` it is made (and its storage probed) when it is new.

        Raises StoreError when it cannot be written, is of a newer format, or is no store at all.
        """
        store = cls(fs.normalise(url))
        record_url = layout.store_record(store.url)
        try:
            data = fs.read(record_url)
        except fs.NotFound:
            if write:
                fs.probe(store.url)
                fs.create(record_url, records.encode("store", {"format": layout.FORMAT}))
            return store
        record = records.decode(data, "store", where=record_url)
        if record is None or not isinstance(record.get("format"), int):
            hint = "restore store.json from a backup, or use another folder with --store"
            raise StoreError("this folder's store.json cannot be read", where=record_url, hint=hint)
        if record["format"] > layout.FORMAT:
            raise StoreError(
                f"the store has format {record['format']}, and this marin reads up to {layout.FORMAT}",
                where=record_url,
                hint="upgrade marin",
            )
        return store

    def exists(self) -> bool:
        """Whether anything has made this a store."""
        return fs.exists(layout.store_record(self.url))

    @property
    def shards(self) -> ShardCache:
        """The shard cache."""
        return ShardCache(self.url)

    def artifact_folder(self, step: str, fingerprint: str) -> str:
        """Return the URL of everything that belongs to one fingerprint."""
        return layout.artifact_folder(self.url, step, fingerprint)

    def attempt_folder(self, step: str, fingerprint: str, attempt: str) -> str:
        """Return the URL of one attempt's private folder."""
        return layout.attempt_folder(self.artifact_folder(step, fingerprint), attempt)

    def attempt_output(self, step: str, fingerprint: str, attempt: str) -> fs.FolderOutput:
        """Return the folder in which an attempt writes its files."""
        return fs.FolderOutput(fs.join(self.attempt_folder(step, fingerprint, attempt), "output"))

    def checkpoints_folder(self, step: str, fingerprint: str) -> str:
        """Return the URL of the checkpoints of a fingerprint, which outlive attempts."""
        return fs.join(self.artifact_folder(step, fingerprint), "checkpoints")

    def find(self, keys: Sequence[tuple[str, str]]) -> dict[str, Manifest]:
        """Return what is committed, by fingerprint; damaged records are misses with a warning."""
        wanted = list(dict.fromkeys(keys))
        if len(wanted) <= 1:
            found = [self._read(*key) for key in wanted]
        else:
            with ThreadPoolExecutor(THREADS) as pool:
                found = list(pool.map(lambda key: self._read(*key), wanted))
        return {each.fingerprint: each for each in found if each is not None}

    def _read(self, step: str, fingerprint: str) -> Manifest | None:
        url = self._manifest_url(step, fingerprint)
        try:
            data = fs.read(url)
        except fs.NotFound:
            return None
        found = manifest.decode(data, where=url)
        return found if found is not None and found.fingerprint == fingerprint and found.step == step else None

    def manifests(self, step: str | None = None) -> list[Manifest]:
        """Return all that is committed, of one step or of all, newest first."""
        steps = [step] if step else fs.list_folder(layout.steps_folder(self.url))
        urls = [
            fs.join(layout.steps_folder(self.url), name, prefix, "manifest.json")
            for name in steps
            for prefix in fs.list_folder(fs.join(layout.steps_folder(self.url), name))
        ]
        with ThreadPoolExecutor(THREADS) as pool:
            found = [each for each in pool.map(_load, urls) if each is not None]
        return sorted(found, key=lambda each: each.finished, reverse=True)

    def recipe(self, step: str, fingerprint: str) -> Json:
        """Return the recipe that a fingerprint was computed from; None when it is not there."""
        record = records.load(fs.join(self.artifact_folder(step, fingerprint), "recipe.json"), "recipe")
        return record and record.get("recipe")

    def write_recipe(self, step: str, fingerprint: str, recipe: Json) -> None:
        """Store the recipe beside the artifact, once."""
        record = records.encode("recipe", {"fingerprint": fingerprint, "recipe": recipe})
        fs.create(fs.join(self.artifact_folder(step, fingerprint), "recipe.json"), record)

    def contents(self, committed: Manifest) -> Contents:
        """Return the contents of an artifact, ready to open."""
        return manifest_contents(self.url, committed)

    def present(self, committed: Manifest) -> bool:
        """Whether all files are there; a hit whose files are gone is a miss."""
        return present([placed(self.url, file) for file in committed.all_files])

    def commit(self, mine: Manifest) -> Commit:
        """Create the manifest, or accept what stands there already.

        My own attempt there (a retried request met its success) and equal bytes are success. Other bytes win over
        mine; the difference is recorded in my attempt's `nondeterminism.json`. A record that nobody can use (damaged,
        or its files are gone) makes way.
        """
        url = self._manifest_url(mine.step, mine.fingerprint)
        while not fs.create(url, mine.encode()):
            try:
                stored = fs.read(url)
            except fs.NotFound:
                continue
            winner = manifest.decode(stored, where=url)
            if winner is not None and winner.fingerprint != mine.fingerprint:
                raise StoreError(
                    f"another result has the same first {layout.PREFIX_HEX} digits of its fingerprint",
                    where=url,
                    hint="run this pipeline in another store with --store",
                )
            if winner is None or (winner.attempt != mine.attempt and not self.present(winner)):
                fs.delete_unchanged(url, stored)
            elif winner.attempt == mine.attempt:
                return Commit(winner, "committed")
            elif winner.digest == mine.digest:
                return Commit(winner, "same")
            else:
                self._record_nondeterminism(mine, winner)
                return Commit(winner, "adopted")
        return Commit(mine, "committed")

    def _record_nondeterminism(self, mine: Manifest, winner: Manifest) -> None:
        ours = {file.path: file.digest for file in mine.all_files}
        theirs = {file.path: file.digest for file in winner.all_files}
        differing = sorted(path for path in {*ours, *theirs} if ours.get(path) != theirs.get(path))
        record: Json = {"adopted": winner.attempt, "differing": differing}
        folder = self.attempt_folder(mine.step, mine.fingerprint, mine.attempt)
        fs.replace(fs.join(folder, "nondeterminism.json"), pretty(record).encode())

    def write_run(self, run: str, record: Mapping[str, Json]) -> None:
        """Store or replace a run's record."""
        fs.replace(fs.join(layout.run_folder(self.url, run), "run.json"), records.encode("run", record))

    def read_run(self, run: str) -> dict[str, Any] | None:  # Any: JSON
        """Return a run's record; None when there is none."""
        return records.load(fs.join(layout.run_folder(self.url, run), "run.json"), "run")

    def runs(self) -> list[str]:
        """Return the ids of all runs, newest first."""
        return fs.list_folder(layout.runs_folder(self.url))[::-1]

    def _manifest_url(self, step: str, fingerprint: str) -> str:
        return fs.join(self.artifact_folder(step, fingerprint), "manifest.json")


def _load(url: str) -> Manifest | None:
    try:
        return manifest.decode(fs.read(url), where=url)
    except fs.NotFound:
        return None


def unplaced_contents(store: Store, contents: Contents) -> Contents:
    """Return contents as a manifest records them: paths below the store's root."""
    return dataclasses.replace(
        contents,
        files=tuple(manifest.unplaced(store.url, file) for file in contents.files),
        shards=tuple(manifest.unplaced_shard(store.url, shard) for shard in contents.shards),
    )
