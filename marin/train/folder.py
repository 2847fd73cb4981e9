"""Sequences as a plain folder that training reads without a store.

    <url>/sequences.json          meta, and per shard: name, digest, value, files
          tokenizer.json
          00000/tokens.npy ...    the files of each shard

Invariant: what is opened has the digests of what was written.
"""

import json
import shutil
from typing import Any

from marin import fs
from marin.base.errors import InputError
from marin.base.json import Json, pretty
from marin.graph.artifact import Sequences
from marin.graph.files import Contents, FileRef, Shard

INDEX = "sequences.json"


def write_folder(data: Sequences, url: str) -> None:
    """Copy sequences into a folder; `sequences.json` is written last."""
    for file in data.contents.files:
        _copy(file, fs.join(url, file.path))
    shards: list[Json] = []
    for number, shard in enumerate(data.shards):
        for file in shard.files:
            _copy(file, fs.join(url, f"{number:05d}", file.path))
        shards.append(
            {
                "name": shard.name,
                "digest": shard.digest,
                "value": shard.value,
                "files": [_entry(f) for f in shard.files],
            }
        )
    files: list[Json] = [_entry(file) for file in data.contents.files]
    record: dict[str, Json] = {"meta": dict(data.meta), "files": files, "shards": shards}
    fs.replace(fs.join(url, INDEX), pretty(record).encode())


def open_folder(url: str) -> Sequences:
    """Return the sequences that `write_folder` put there; raises InputError where there are none."""
    try:
        record = json.loads(fs.read(fs.join(url, INDEX)))
    except fs.NotFound as error:
        raise InputError(
            f"no `{INDEX}` in this folder",
            where=url,
            hint="write it with marin.train.folder.write_folder(marin.load(step), url)",
        ) from error
    shards = tuple(
        Shard(shard["name"], shard["digest"], _files(fs.join(url, f"{number:05d}"), shard["files"]), shard["value"])
        for number, shard in enumerate(record["shards"])
    )
    return Sequences(Contents(fs.FileReader(), _files(url, record["files"]), shards, record["meta"]))


def _copy(file: FileRef, url: str) -> None:
    with fs.open_read(file.url) as source, fs.write_stream(url) as target:
        shutil.copyfileobj(source, target, 2**20)


def _entry(file: FileRef) -> dict[str, Json]:
    return {"path": file.path, "size": file.size, "digest": file.digest}


def _files(folder: str, entries: list[dict[str, Any]]) -> tuple[FileRef, ...]:  # Any: JSON of `_entry`
    return tuple(FileRef(**entry, url=fs.join(folder, entry["path"])) for entry in entries)
