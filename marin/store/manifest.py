"""Manifest: the commit record of an artifact. That it exists means the step is done.

Paths in it are relative to the store's root and may not climb, so a store can be moved or copied whole.
"""

import dataclasses
import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from marin import fs
from marin.base.json import Json, dumps
from marin.graph.files import Contents, FileRef, Shard
from marin.store import layout, records

log = logging.getLogger(__name__)

KIND = "manifest"


@dataclass(frozen=True)
class Producer:
    """Who made an artifact; recorded, never part of a key."""

    user: str = "unknown"
    host: str = "unknown"
    commit: str | None = None
    dirty: bool = False
    """Whether the working tree differed from the commit, or could not be shown to be the same."""
    versions: Mapping[str, str] = field(default_factory=dict)
    diff: str | None = None
    """Digest of how the tree differed: the diff, and each untracked file's name and digest."""
    lock: str | None = None
    """Digest of the list of installed distributions, which the store keeps."""
    folder: str | None = None
    """Working folder of the run, at which relative URLs of inputs begin."""


@dataclass(frozen=True)
class ParentRef:
    """A parent as it was read: the field that held it, and which result."""

    path: str
    step: str
    fingerprint: str
    digest: str


@dataclass(frozen=True)
class Manifest:
    """What was committed under a fingerprint, by which attempt of which run."""

    fingerprint: str
    step: str
    artifact: str
    """Type name of the artifact."""
    artifact_schema: int
    files: tuple[FileRef, ...]
    """`url` is the path below the store's root."""
    shards: tuple[Shard, ...]
    meta: Json
    digest: str
    """The output digest."""
    attempt: str
    epoch: int
    run: str
    producer: Producer
    started: str
    finished: str
    seconds: float
    resources: Mapping[str, Json]
    metrics: Mapping[str, float]
    recipe: str
    """The recipe fingerprint (of the static recipe)."""
    parents: tuple[ParentRef, ...] = ()
    """In the order of the step's fields; a parent held by several fields stands several times."""
    name: str = ""
    """What the step was called in the plan that made it."""
    modules: str | None = None
    """Digest of the set of first-party modules that it was made from, as they were; None for marin's own steps."""
    source: str | None = None
    """Digest of the step's source when it ran, whatever its declared version says; None if it was not recorded."""
    constructor: Json = None
    """The step as `marin.graph.constructor` writes it down; None in records of an older marin."""
    root: str = field(default="", compare=False)
    """The store that it was read from; not stored. Empty for one that this process has made."""

    @property
    def all_files(self) -> tuple[FileRef, ...]:
        """The artifact's own files and its shards'."""
        return (*self.files, *(file for shard in self.shards for file in shard.files))

    @property
    def size(self) -> int:
        """Bytes of all files together."""
        return sum(file.size for file in self.all_files)

    @property
    def moment(self) -> tuple[str, str]:
        """When it was made, to sort by: times are whole seconds, and ids of runs tell those of one second apart."""
        return self.finished, self.run

    def encode(self) -> bytes:
        """Return the record to store."""
        plain = {each.name: getattr(self, each.name) for each in dataclasses.fields(self) if each.name != "root"}
        plain["producer"] = dataclasses.asdict(self.producer)
        plain["files"] = [file_record(file) for file in self.files]
        plain["shards"] = [shard_record(shard) for shard in self.shards]
        plain["parents"] = [dataclasses.asdict(parent) for parent in self.parents]
        return records.encode(KIND, {**plain, "bytes": self.size})


def decode(data: bytes, *, where: str, root: str = "") -> Manifest | None:
    """Return the manifest, or None with a warning when the record cannot be believed; `root` is its store."""
    record = records.decode(data, KIND, where=where)
    if record is None:
        return None
    try:
        record.pop("bytes")
        return Manifest(
            **{
                **record,
                "root": root,
                "files": tuple(read_file(file) for file in record["files"]),
                "shards": tuple(read_shard(shard) for shard in record["shards"]),
                "producer": Producer(**record["producer"]),
                "parents": tuple(_parent(parent) for parent in record.get("parents", ())),
            }
        )
    except (KeyError, TypeError, ValueError) as error:
        log.warning("%s is no manifest that this marin can read (%s); it is passed over", where, error)
        return None


def manifest_contents(root: str, manifest: Manifest) -> Contents:
    """Return the artifact's contents with absolute URLs."""
    return Contents(
        fs.FileReader(),
        tuple(placed(root, file) for file in manifest.files),
        tuple(placed_shard(root, shard) for shard in manifest.shards),
        manifest.meta,
        manifest.digest,
    )


def placed(root: str, file: FileRef) -> FileRef:
    """Return a recorded file with its absolute URL."""
    return dataclasses.replace(file, url=fs.join(root, file.url))


def placed_shard(root: str, shard: Shard) -> Shard:
    """Return a recorded shard with absolute URLs."""
    return dataclasses.replace(shard, files=tuple(placed(root, file) for file in shard.files))


def unplaced(root: str, file: FileRef) -> FileRef:
    """Return a file as a manifest records it: its URL relative to the root."""
    return dataclasses.replace(file, url=layout.relative(root, file.url))


def unplaced_shard(root: str, shard: Shard) -> Shard:
    """Return a shard as a manifest records it."""
    return dataclasses.replace(shard, files=tuple(unplaced(root, file) for file in shard.files))


def output_digest(artifact: str, schema: int, contents: Contents) -> str:
    """Return the digest of what an artifact is: type, files, shards in order, meta; no times and no places."""
    plain: Json = {
        "artifact": artifact,
        "artifact_schema": schema,
        "files": [[file.path, file.size, file.digest] for file in sorted(contents.files, key=lambda file: file.path)],
        "shards": [shard.digest for shard in contents.shards],
        "meta": contents.meta,
    }
    return hashlib.sha256(dumps(plain).encode("utf-8", "surrogatepass")).hexdigest()


def shard_digest(files: Sequence[FileRef], value: Json) -> str:
    """Return the digest of what a shard is: its files and the value that its function returned."""
    plain: Json = {
        "files": [[file.path, file.size, file.digest] for file in sorted(files, key=lambda file: file.path)],
        "value": value,
    }
    return hashlib.sha256(dumps(plain).encode("utf-8", "surrogatepass")).hexdigest()


def file_record(file: FileRef) -> dict[str, Json]:
    return {"path": file.path, "url": file.url, "size": file.size, "digest": file.digest}


def shard_record(shard: Shard) -> dict[str, Json]:
    files = [file_record(file) for file in shard.files]
    return {"name": shard.name, "digest": shard.digest, "value": shard.value, "files": files}


def read_file(record: Mapping[str, Any]) -> FileRef:  # Any: JSON
    """Return a recorded file; ValueError when its path climbs out of the store."""
    for name in ("url", "path"):
        if not isinstance(record[name], str) or layout.absolute("", record[name]) is None:
            raise ValueError(f"the path {record[name]!r} leaves the store")
    if not isinstance(record["size"], int) or not isinstance(record["digest"], str):
        raise TypeError(f"the size or digest of {record['path']!r} is none")
    return FileRef(record["path"], record["url"], record["size"], record["digest"])


def _parent(record: Mapping[str, Any]) -> ParentRef:  # Any: JSON
    """Return a recorded parent; TypeError when it holds anything but text."""
    if not isinstance(record, dict) or not all(isinstance(value, str) for value in record.values()):
        raise TypeError("a parent that is no text")
    return ParentRef(**record)


def read_shard(record: Mapping[str, Any]) -> Shard:  # Any: JSON
    """Return a recorded shard; ValueError when a path climbs out of the store."""
    files = tuple(read_file(file) for file in record["files"])
    return Shard(record["name"], record["digest"], files, record["value"])
