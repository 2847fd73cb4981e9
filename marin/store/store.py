"""Store: artifacts, shards, leases and runs below one URL, and read-only upstream stores that are asked next.

Invariant: `manifest.json` is created once, by one winner, after everything it names is whole. Correctness never
depends on leases. Nothing in a store is ever executed. Nothing is ever written to an upstream store, and every file
that a record names lies below the root of the record's own store.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, Self

from marin import fs
from marin.base.errors import StoreError
from marin.base.json import Json, pretty
from marin.graph.files import Contents, FileRef
from marin.store import layout, manifest, records
from marin.store.former_results import record_replaced
from marin.store.manifest import Manifest, manifest_contents, placed
from marin.store.presence import present, present_each
from marin.store.shards import ShardCache
from marin.store.unlisted import peek, recall

log = logging.getLogger(__name__)


class Commit(NamedTuple):
    """How a commit ended; `manifest` is what stands in the store now."""

    manifest: Manifest
    outcome: Literal["committed", "same", "adopted"]


class Store:
    """One store; make it with `Store.open`."""

    def __init__(self, url: str, upstreams: "Sequence[Store]" = ()) -> None:
        self.url = url
        self.upstreams = tuple(upstreams)
        """Read-only stores that are asked, in order, for what this one does not have."""

    @classmethod
    def open(cls, url: str, *, write: bool, read_from: Sequence[str] = ()) -> Self:
        """Open a store; with `write` it is made (and its storage probed) when it is new.

        `read_from` names the upstream stores. Raises StoreError when the store cannot be written, is of a newer format,
        or is no store at all, and when an upstream store is not there.
        """
        own = fs.normalise(url)
        others = [each for each in dict.fromkeys(map(fs.normalise, read_from)) if each != own]
        store = cls(own, [_upstream(each) for each in others])
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
            problem = records.problem_of(data, "store") or "holds no format"
            hint = "delete store.json, which is safe: results lie beside it, and the next run makes it again"
            if "schema" in problem:
                hint = "upgrade marin: a newer one has made this store"
            raise StoreError(f"this folder's store.json cannot be read: it {problem}", where=record_url, hint=hint)
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
        return ShardCache(self.url, [upstream.url for upstream in self.upstreams])

    def artifact_url(self, committed: Manifest) -> str:
        """Return the folder of an artifact in the store that it was found in."""
        return layout.artifact_folder(committed.root or self.url, committed.step, committed.fingerprint)

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
        """Return what is committed, by fingerprint; damaged records are misses with a warning.

        What this store does not have, or has lost the files of, is looked for in the upstream stores.
        """
        own = self._find(keys)
        return {**own, **self._whole(own, keys)} if self.upstreams else own

    def hits(self, keys: Sequence[tuple[str, str]]) -> dict[str, Manifest]:
        """Return what is committed here or upstream and whose files are all there, by fingerprint."""
        return self._whole(self._find(keys), keys)

    def recall(self, keys: Sequence[tuple[str, str]]) -> dict[str, Manifest]:
        """Return what `hits` does, and what `marin gc` has unlisted and not yet deleted: that is listed again."""
        found = self.hits(keys)
        for step, fingerprint in keys:
            if fingerprint not in found and (again := recall(self.url, step, fingerprint)):
                found[fingerprint] = again
        for upstream in self.upstreams:
            for step, fingerprint in [key for key in keys if key[1] not in found]:
                if there := peek(upstream.url, step, fingerprint):
                    found[fingerprint] = there
        return found

    def _find(self, keys: Sequence[tuple[str, str]]) -> dict[str, Manifest]:
        urls = {self._manifest_url(*key): key for key in keys}
        found = fs.decode_many(urls, lambda url, data: manifest.decode(data, where=url, root=self.url))
        return {each.fingerprint: each for url, each in found.items() if _is_of(each, urls[url], url)}

    def _whole(self, own: Mapping[str, Manifest], keys: Sequence[tuple[str, str]]) -> dict[str, Manifest]:
        there = present_each([self._files(each) for each in own.values()])
        whole = {key: each for (key, each), is_there in zip(own.items(), there, strict=True) if is_there}
        for upstream in self.upstreams:
            if missing := [key for key in keys if key[1] not in whole]:
                whole.update(upstream.hits(missing))
        return whole

    def manifests(self, step: str | None = None) -> list[Manifest]:
        """Return all that is committed, of one step or of all, newest first."""
        steps = [step] if step else fs.list_folder(layout.steps_folder(self.url))
        folders = fs.list_folders(fs.join(layout.steps_folder(self.url), name) for name in steps)
        urls = [fs.join(folder, prefix, "manifest.json") for folder, found in folders.items() for prefix in found]
        committed = fs.decode_many(urls, lambda url, data: manifest.decode(data, where=url, root=self.url))
        return sorted(committed.values(), key=lambda each: each.moment, reverse=True)

    def recipe(self, step: str, fingerprint: str) -> Json:
        """Return the recipe that a fingerprint was computed from; None when it is not there."""
        for store in (self, *self.upstreams):
            record = records.load(fs.join(store.artifact_folder(step, fingerprint), "recipe.json"), "recipe")
            if record and record.get("fingerprint") == fingerprint:
                recipe: Json = record.get("recipe")
                return recipe
        return None

    def write_recipe(self, step: str, fingerprint: str, recipe: Json) -> None:
        """Store the recipe beside the artifact, in place of one that was damaged or that changed code wrote."""
        record = records.encode("recipe", {"fingerprint": fingerprint, "recipe": recipe})
        fs.replace(fs.join(self.artifact_folder(step, fingerprint), "recipe.json"), record)

    def contents(self, committed: Manifest) -> Contents:
        """Return the contents of an artifact, ready to open."""
        return manifest_contents(committed.root or self.url, committed)

    def present(self, committed: Manifest) -> bool:
        """Whether all files are there; a hit whose files are gone is a miss."""
        return present(self._files(committed))

    def _files(self, committed: Manifest) -> list[FileRef]:
        return [placed(committed.root or self.url, file) for file in committed.all_files]

    def commit(self, mine: Manifest, *, replaces: str | None = None) -> Commit:
        """Create the manifest, or accept what stands there already, unless it is of the attempt that it `replaces`.

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
            if winner is not None and self._manifest_url(winner.step, winner.fingerprint) != url:
                winner = None  # copied here from another result's folder
            if winner is not None and winner.fingerprint != mine.fingerprint:
                raise StoreError(
                    f"another result has the same first {layout.PREFIX_HEX} digits of its fingerprint",
                    where=url,
                    hint="run this pipeline in another store with --store",
                )
            if (
                winner is None
                or winner.attempt == replaces
                or (winner.attempt != mine.attempt and not self.present(winner))
            ):
                if winner is not None and winner.attempt == replaces:
                    record_replaced(self.url, winner, stored, by=mine.producer.user)
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


def _is_of(found: Manifest, key: tuple[str, str], url: str) -> bool:
    """Whether a manifest is of the result that was asked for; a warning says when it is of another."""
    if (found.step, found.fingerprint) == key:
        return True
    log.warning("%s is of another result, %s %s; it is passed over", url, found.step, found.fingerprint)
    return False


def _upstream(url: str) -> Store:
    """Open a store to read from; StoreError when there is none, for somebody has named it."""
    store = Store.open(url, write=False)
    if not store.exists():
        raise StoreError(
            f"there is no store to read from at {store.url}",
            where=store.url,
            hint="mend or leave out --read-from; it wants the URL of a store that a run has made",
        )
    return store
