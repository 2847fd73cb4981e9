"""Real files in a temporary folder, and shard functions run on them as the engine would."""

from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path

import pytest
from blake3 import blake3

from marin import fs
from marin.base.json import Json
from marin.data.hashes import bundle
from marin.data.ingest import records_shard
from marin.graph.files import FileRef, Shard


@pytest.fixture
def make_file(tmp_path: Path) -> Callable[[str, bytes], FileRef]:
    """Write a file and return its pin."""

    def make(path: str, data: bytes) -> FileRef:
        target = tmp_path / "files" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
        return FileRef(path, str(target), len(data), blake3(data).hexdigest())

    return make


@pytest.fixture
def run_shards(tmp_path: Path) -> Callable[..., list[Shard]]:
    """Run a shard function on each shard; returns the shards it made."""
    numbers = count()

    def run(fn: Callable[..., Json], shards: Sequence[Shard], **config: object) -> list[Shard]:
        made = []
        for shard in shards:
            output = fs.FolderOutput(str(tmp_path / "shards" / str(next(numbers))))
            value = fn(shard, output, **config)
            made.append(bundle(output.files, value))
        return made

    return run


@pytest.fixture
def documents(run_shards: Callable[..., list[Shard]]) -> Callable[..., list[Shard]]:
    """Return shards of Documents, one for each list of texts."""

    def make(*groups: Sequence[str]) -> list[Shard]:
        return [run_shards(records_shard, [Shard("records", "")], texts=texts)[0] for texts in groups]

    return make
