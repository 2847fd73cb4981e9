"""Whether what a store holds is what was written: records, sizes of all files, and with `deep` their digests.

Invariant: every file that a believed record names is checked once, and nothing is changed. What a run or `marin gc`
replaced while it was looked at is not called bad.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from marin import fs
from marin.base.errors import StoreError
from marin.fs.aged import Aged, list_aged
from marin.graph.files import FileRef
from marin.store import manifest, pins, records, shards
from marin.store.gc.inventory import decode_shard, is_at_home
from marin.store.manifest import Manifest
from marin.store.presence import THREADS
from marin.store.store import Store

Progress = Callable[[int, int], None]
"""Bytes read, of how many."""


@dataclass(frozen=True)
class Bad:
    """Something that is not what was written."""

    artifact: str
    """URL of the folder that the record lies in."""
    file: str
    """URL."""
    problem: str
    is_record: bool = False


@dataclass
class Verified:
    """What was looked at, and what of it is bad."""

    checked: int = 0
    """Files."""
    records: int = 0
    bytes: int = 0
    bad: list[Bad] = field(default_factory=list)


@dataclass(frozen=True)
class _Record:
    """A believed record and the files that it names, with their paths below the root."""

    url: str
    data: bytes
    files: tuple[FileRef, ...]

    @property
    def folder(self) -> str:
        return self.url.rpartition("/")[0]


def verify(
    store: Store,
    named: Sequence[Manifest] | None = None,
    *,
    deep: bool,
    progress: Progress = lambda done, total: None,
) -> Verified:
    """Check the artifacts that are named, with the files of their shards; everything in the store if none is."""
    found = Verified()
    believed = list(_named(store, named) if named is not None else _all(store, found))
    found.records += len(believed)
    sizes = _sizes(store.url, believed, everything=named is None)
    whole: dict[FileRef, _Record] = {}
    suspects: list[tuple[_Record, FileRef, str]] = []
    # A shard's files are named by its record and by the artifacts that have it: the artifacts come first.
    named_by = {file: record for record in reversed(believed) for file in record.files}
    for file, record in named_by.items():
        problem = _size_problem(file, sizes.get(file.url))
        if problem is None:
            whole[file] = record
        else:
            suspects.append((record, file, problem))
    found.checked = len(whole) + len(suspects)
    found.bytes = sum(file.size for file in [*whole, *(file for _, file, _ in suspects)])
    if deep:
        suspects += _digest_problems(store.url, whole, progress)
    stands = fs.read_many({record.url for record, _, _ in suspects})
    found.bad += [
        Bad(record.folder, fs.join(store.url, file.url), problem)
        for record, file, problem in suspects
        if stands.get(record.url) == record.data  # otherwise somebody has replaced or unlisted it meanwhile
    ]
    return found


def _named(store: Store, named: Iterable[Manifest]) -> Iterator[_Record]:
    urls = {fs.join(store.artifact_folder(each.step, each.fingerprint), "manifest.json"): each for each in named}
    for url, data in fs.read_many(urls).items():
        committed = manifest.decode(data, where=url)
        if committed is not None:
            yield _Record(url, data, committed.all_files)


def _all(store: Store, found: Verified) -> Iterator[_Record]:
    """Yield every record that names files; those that cannot be believed, of any kind, are bad."""
    urls = [file.url for folder in ("artifacts", "shards", "runs", "pins") for file in _records(store.url, folder)]
    for url, data in fs.read_many(urls).items():
        parts = url[len(store.url) + 1 :].split("/")
        kind = _kind(parts)
        if problem := records.problem_of(data, kind):
            found.bad.append(Bad(url.rpartition("/")[0], url, f"the record {problem}", is_record=True))
        elif kind == manifest.KIND:
            committed = manifest.decode(data, where=url)
            if committed is None or not is_at_home(committed, parts[1], parts[2]):
                found.bad.append(Bad(url.rpartition("/")[0], url, "the record is not of this folder", is_record=True))
            else:
                yield _Record(url, data, committed.all_files)
        elif kind == shards.KIND:
            shard = decode_shard(data, parts[2], where=url)
            if shard is None:
                found.bad.append(Bad(url.rpartition("/")[0], url, "the record is not of this folder", is_record=True))
            else:
                yield _Record(url, data, shard.files)
        else:
            found.records += 1


def _records(root: str, folder: str) -> list[Aged]:
    """Return the records of a kind that can be bad: not events, leases or what attempts left."""
    names = {"artifacts": ("manifest.json", "recipe.json"), "shards": ("manifest.json",), "runs": ("run.json",)}
    depth = {"artifacts": 3, "shards": 3, "runs": 2, "pins": 1}[folder]
    return [
        file
        for file in list_aged(fs.join(root, folder))
        if file.path.count("/") == depth - 1
        and file.path.endswith(".json")
        and (folder not in names or file.path.rsplit("/", 1)[-1] in names[folder])
    ]


def _kind(parts: Sequence[str]) -> str:
    if parts[0] == "artifacts":
        return manifest.KIND if parts[-1] == "manifest.json" else "recipe"
    return {"shards": shards.KIND, "runs": "run", "pins": pins.KIND}[parts[0]]


def _sizes(root: str, believed: Iterable[_Record], *, everything: bool) -> Mapping[str, int]:
    """Return the sizes of stored files by their paths below the root: folders are listed, files never asked for."""
    if everything:
        folders = {"artifacts", "shards"}
    else:
        folders = {"/".join(file.url.split("/")[:3]) for record in believed for file in record.files}
    listed = fs.ask_each(list_aged, (fs.join(root, folder) for folder in folders))
    return {file.url[len(root) + 1 :]: file.size for files in listed.values() for file in files}


def _size_problem(file: FileRef, size: int | None) -> str | None:
    if size is None:
        return "it is missing"
    return None if size == file.size else f"it has {size:,} bytes instead of {file.size:,}"


def _digest_problems(
    root: str, files: Mapping[FileRef, _Record], progress: Progress
) -> list[tuple[_Record, FileRef, str]]:
    total, done = sum(file.size for file in files), 0
    found = []
    with ThreadPoolExecutor(min(THREADS, 2 * (os.cpu_count() or 1))) as pool:
        for file, problem in zip(files, pool.map(lambda file: _digest_problem(root, file), files), strict=True):
            done += file.size
            progress(done, total)
            if problem is not None:
                found.append((files[file], file, problem))
    return found


def _digest_problem(root: str, file: FileRef) -> str | None:
    url = fs.join(root, file.url)
    try:
        size, digest = fs.digest_file(url)
    except (StoreError, OSError) as error:
        return f"it cannot be read: {error.what if isinstance(error, StoreError) else error}"
    if (size, digest) == (file.size, file.digest):
        return None
    return f"it has the digest {digest[:16]} instead of {file.digest[:16]}: the file is damaged"
