"""All that lies in a store, read once, sorted by what it belongs to: what `marin gc` reasons about.

Invariant: runs are read before results. What a run committed before it ended is then seen; what begins later is younger
than this inventory, and can have met nothing that was unlisted before it. Nothing here writes or decides.
"""

import contextlib
import json
from dataclasses import dataclass, field
from typing import NamedTuple

from marin import fs
from marin.base.errors import StoreError
from marin.fs.aged import Aged, list_aged, list_aged_here
from marin.graph.files import Shard
from marin.store import former_results, layout, manifest, records, reused, shards, unlisted
from marin.store.gc.runs import RunSeen, read_runs
from marin.store.manifest import Manifest, read_shard
from marin.store.pins import Pin, pins
from marin.store.unlisted import Unlisted

_SCHEMA_LINES = tuple(f'\n "schema": {records.SCHEMA}{end}'.encode() for end in (",", "\n"))  # a record's own
COLLECTOR = "marin-gc-"
"""How the ids of collectors begin, in the leases that they take."""

_LONG_AGO = 1.0  # seconds since 1970; 0 would be unknown
_PREFIX_PARTS = 3  # artifacts/<step>/<prefix>, and shards/<2 hex>/<fingerprint>


class Listed(NamedTuple):
    """A committed manifest as it stands."""

    manifest: Manifest
    text: bytes
    modified: float


class LeaseSeen(NamedTuple):
    """The highest lease of a fingerprint, not given back."""

    run: str
    modified: float


@dataclass
class AttemptFolder:
    """One attempt's private folder, of an artifact or of a shard."""

    path: str
    name: str
    run: str
    """The run that made it, as its name says."""
    files: list[Aged] = field(default_factory=list)


@dataclass
class ArtifactFolder:
    """Everything of one fingerprint."""

    path: str
    step: str
    prefix: str
    listed: Listed | None = None
    unreadable: bool = False
    """There is a manifest, and it cannot be believed."""
    attempts: dict[str, AttemptFolder] = field(default_factory=dict)
    checkpoints: list[Aged] = field(default_factory=list)
    leases: list[Aged] = field(default_factory=list)
    rest: list[Aged] = field(default_factory=list)
    """The manifest, the recipe, and whatever else lies here."""
    lease: LeaseSeen | None = None
    left_lease: Aged | None = None
    """The lease of a collector that was killed."""
    former: list[Manifest] = field(default_factory=list)
    """Manifests that were taken away on purpose."""

    @property
    def epoch(self) -> int:
        """The highest epoch that was ever leased."""
        return max((epoch_of(file.path) for file in self.leases), default=0)

    @property
    def files(self) -> list[Aged]:
        """All files."""
        attempts = [file for attempt in self.attempts.values() for file in attempt.files]
        return [*attempts, *self.checkpoints, *self.leases, *self.rest]


@dataclass
class ShardFolder:
    """Everything of one shard fingerprint."""

    path: str
    fingerprint: str
    shard: Shard | None = None
    """As its record says; file URLs are paths below the store's root."""
    text: bytes = b""
    """The record as it is stored; empty when there is none."""
    modified: float = 0.0
    attempts: dict[str, AttemptFolder] = field(default_factory=dict)
    rest: list[Aged] = field(default_factory=list)

    @property
    def files(self) -> list[Aged]:
        """All files."""
        return [*(file for attempt in self.attempts.values() for file in attempt.files), *self.rest]


class UnlistedShards(NamedTuple):
    """A record of many shards that were unlisted together."""

    path: str
    texts: dict[str, bytes]
    complete: bool
    modified: float


@dataclass
class Inventory:
    """What lies in a store."""

    root: str
    pins: list[Pin]
    runs: dict[str, RunSeen]
    artifacts: dict[tuple[str, str], ArtifactFolder] = field(default_factory=dict)
    """By step and the first 16 digits of the fingerprint."""
    shards: dict[str, ShardFolder] = field(default_factory=dict)
    unlisted: list[tuple[Unlisted, float]] = field(default_factory=list)
    """With the time at which each record was last written."""
    unlisted_shards: list[UnlistedShards] = field(default_factory=list)
    claims: list[Aged] = field(default_factory=list)
    reused: dict[str, set[str]] = field(default_factory=dict)
    """Run to the fingerprints of shards that its attempts took from the cache."""
    strays: list[Aged] = field(default_factory=list)
    """Partial files outside of attempts, which their writers never finished."""


def take_inventory(root: str) -> Inventory:
    """Return all that lies in a store; StoreError when a pin cannot be read or a record is of a newer marin."""
    # In this order: whatever a run that has ended here committed is seen below, and so is a manifest that a reader
    # has put back, for its record of unlisting goes only after that.
    found = Inventory(root, pins(root), read_runs(root))
    _read_unlisted(found)
    _read_artifacts(found)
    _read_shards(found)
    for folder in ("", "pins", "runs"):
        found.strays += _strays_beside(root, folder)
    return found


def is_stray(path: str) -> bool:
    """Whether a file is one that a writer leaves only when it is killed."""
    name = path.rsplit("/", 1)[-1]
    return name.startswith(".probe-") or (name.startswith(".") and name.endswith(".partial"))


def epoch_of(path: str) -> int:
    """Return the number in a lease record's name; 0 for any other file."""
    number = path.rsplit("/", 1)[-1].split(".", 1)[0]
    return int(number) if number.isdigit() else 0


def _read_artifacts(found: Inventory) -> None:
    for file in _below(found.root, "artifacts"):
        parts = file.path.split("/")
        if len(parts) <= _PREFIX_PARTS:
            found.strays += [file] if is_stray(file.path) else []
            continue
        path = "/".join(parts[:_PREFIX_PARTS])
        owner = found.artifacts.setdefault((parts[1], parts[2]), ArtifactFolder(path, parts[1], parts[2]))
        below = parts[_PREFIX_PARTS:]
        if below[0] == "attempts" and len(below) > 2:
            _attempt(owner.attempts, path, below[1], tail=2).files.append(file)
        elif is_stray(file.path):
            found.strays.append(file)
        elif below[0] in ("checkpoints", "leases") and len(below) > 1:
            (owner.checkpoints if below[0] == "checkpoints" else owner.leases).append(file)
        else:
            owner.rest.append(file)
    _read_manifests(found)
    _read_leases(found)
    _read_attempt_records(found)


def _read_manifests(found: Inventory) -> None:
    ages = {file.url: file.modified for owner in found.artifacts.values() for file in owner.rest}
    owners = {fs.join(found.root, owner.path, "manifest.json"): owner for owner in found.artifacts.values()}
    for url, text in fs.read_many(url for url in owners if url in ages).items():
        refuse_newer(text, where=url)
        owner, committed = owners[url], manifest.decode(text, where=url, root=found.root)
        if committed is None or not is_at_home(committed, owner.step, owner.prefix):
            owner.unreadable = True
        else:
            owner.listed = Listed(committed, text, ages[url])


def is_at_home(committed: Manifest, step: str, prefix: str) -> bool:
    """Whether a manifest lies in the folder of its own step and fingerprint."""
    return committed.step == step and committed.fingerprint.startswith(prefix)


def _read_leases(found: Inventory) -> None:
    newest: dict[str, tuple[ArtifactFolder, Aged]] = {}
    for owner in found.artifacts.values():
        names = {file.path.rsplit("/", 1)[-1] for file in owner.leases}
        record = f"{owner.epoch}.json"
        if record in names and f"{owner.epoch}.released.json" not in names:
            file = next(file for file in owner.leases if file.path.endswith(f"/{record}"))
            newest[file.url] = (owner, file)
    for url, data in fs.read_many(newest).items():
        owner, file = newest[url]
        lease = records.decode(data, "lease", where=url) or {}
        run = str(lease.get("run", ""))
        if run.startswith(COLLECTOR):
            # Collectors work one at a time: this one was killed, and its lease is no sign of life, however young.
            owner.left_lease = file._replace(modified=_LONG_AGO)
            owner.leases[owner.leases.index(file)] = owner.left_lease
        else:
            owner.lease = LeaseSeen(run, file.modified)


def _read_attempt_records(found: Inventory) -> None:
    """Read what attempts say of former results and of the shards that they took."""
    wanted: dict[str, tuple[ArtifactFolder, AttemptFolder, str]] = {}
    for owner in found.artifacts.values():
        for attempt in owner.attempts.values():
            for file in attempt.files:
                name = file.path[len(attempt.path) + 1 :]
                if name in former_results.NAMES or (reused.is_reuse(name) and attempt.run in found.runs):
                    wanted[file.url] = (owner, attempt, name)
    for url, data in fs.read_many(wanted).items():
        owner, attempt, name = wanted[url]
        if name in former_results.NAMES:
            taken = former_results.decode(data, where=url, root=found.root)
            owner.former += [taken.manifest] if taken is not None else []
        else:
            found.reused.setdefault(attempt.run, set()).update(reused.decode(data, where=url))


def _read_shards(found: Inventory) -> None:
    ages: dict[str, float] = {}
    for file in _below(found.root, "shards"):
        parts = file.path.split("/")
        if len(parts) <= _PREFIX_PARTS:
            found.strays += [file] if is_stray(file.path) else []
            continue
        path = "/".join(parts[:_PREFIX_PARTS])
        owner = found.shards.setdefault(parts[2], ShardFolder(path, parts[2]))
        below = parts[_PREFIX_PARTS:]
        if below[0] == "attempts" and len(below) > 2:
            _attempt(owner.attempts, path, below[1], tail=3).files.append(file)
        elif is_stray(file.path):
            found.strays.append(file)
        else:
            owner.rest.append(file)
            ages[file.url] = file.modified
    urls = {fs.join(found.root, owner.path, "manifest.json"): owner for owner in found.shards.values()}
    for url, text in fs.read_many(url for url in urls if url in ages).items():
        refuse_newer(text, where=url)
        owner = urls[url]
        owner.text, owner.modified, owner.shard = text, ages[url], decode_shard(text, owner.fingerprint, where=url)


def decode_shard(text: bytes, fingerprint: str, *, where: str) -> Shard | None:
    """Return the shard in a record, its files by their paths below the root; None when it cannot be believed."""
    record = records.decode(text, shards.KIND, where=where)
    if record is None or record.get("fingerprint") != fingerprint:
        return None
    try:
        return read_shard(record["shard"])
    except (KeyError, TypeError, ValueError):
        return None


def _read_unlisted(found: Inventory) -> None:
    files = {file.url: file for file in _below(found.root, "unlisted")}
    found.claims = [file for file in files.values() if unlisted.is_claim(file.path)]
    found.strays += [file for file in files.values() if is_stray(file.path)]
    for url, data in fs.read_many(url for url, file in files.items() if file.path.endswith(".json")).items():
        refuse_newer(data, where=url)
        file = files[url]
        if file.path.startswith("unlisted/shards/"):
            batch = unlisted.decode_shards(data, where=url)
            found.unlisted_shards += [UnlistedShards(file.path, *batch, file.modified)] if batch is not None else []
        elif record := unlisted.decode(data, url=url, root=found.root):
            found.unlisted.append((record, file.modified))


def refuse_newer(data: bytes, *, where: str) -> None:
    """Raise StoreError for a record of a newer marin: what it needs cannot be known here."""
    if any(line in data for line in _SCHEMA_LINES):
        return
    with contextlib.suppress(ValueError, RecursionError):  # no JSON at all: damaged, and nobody's record
        record = json.loads(data)
        schema = record.get("schema") if isinstance(record, dict) else None
        if isinstance(schema, int) and schema > records.SCHEMA:
            raise StoreError(
                f"a record has schema {schema}, and this marin reads up to {records.SCHEMA}",
                where=where,
                hint="upgrade marin: what this record needs cannot be known here, so nothing is deleted",
            )


def _attempt(attempts: dict[str, AttemptFolder], owner: str, name: str, *, tail: int) -> AttemptFolder:
    """Return the folder of an attempt called `<run>-<8 hex>-<number>`, with `-<12 hex>` behind it in a shard's."""
    run = name.rsplit("-", tail)[0]
    return attempts.setdefault(name, AttemptFolder(layout.attempt_folder(owner, name), name, run))


def _below(root: str, folder: str) -> list[Aged]:
    """Return the files below one of the store's folders, with their paths below the root."""
    return [file._replace(path=f"{folder}/{file.path}") for file in list_aged(fs.join(root, folder))]


def _strays_beside(root: str, folder: str) -> list[Aged]:
    """Return what killed writers left in a folder itself, not below it; object stores hold no halves."""
    where = fs.join(root, folder) if folder else root
    return [
        file._replace(path=f"{folder}/{file.path}" if folder else file.path)
        for file in list_aged_here(where)
        if is_stray(file.path)
    ]
