"""Real files in a temporary folder, and shard functions run on them as the engine would."""

import json
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

import marin
from marin import Artifact, Context, Documents, Output, Several, Step, fs
from marin.base.json import Json
from marin.data.documents import Document, write_documents
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


class Corpus(Step[Documents]):
    """Documents in shards as given: a list of `(id, text)`, or of `(id, text, source)`, a shard."""

    groups: Several[Several[tuple[str, ...]]]

    def run(self, ctx: Context) -> Documents:
        groups = [bundle([], [list(document) for document in group]) for group in self.groups]
        mapped = ctx.map(write_group, groups)
        return Documents.write(ctx.output, shards=mapped.shards, meta={"groups": len(groups)})


def write_group(shard: Shard, output: Output) -> Json:
    group: Any = shard.value
    rows = [(*document, "corpus")[:3] for document in group]
    write_documents(output, [Document(name, text, source) for name, text, source in rows])
    return {"documents": len(rows)}


@pytest.fixture(scope="session")
def corpus() -> Callable[..., Corpus]:
    """Return a step of documents: a list of texts, or of `(id, text)`, a shard; texts are called 0, 1, ..."""

    def make(*groups: Sequence[str | tuple[str, ...]]) -> Corpus:
        numbers = count()
        named = [[(str(next(numbers)), item) if isinstance(item, str) else item for item in group] for group in groups]
        return Corpus(groups=[tuple(group) for group in named])

    return make


@pytest.fixture
def run_step(tmp_path: Path) -> Callable[[Step[Any]], Any]:
    """Run a step in a store of the test's own; returns the artifact."""
    return lambda step: marin.run(step, store=tmp_path / "store", backend="inline")


def json_lines(artifact: Artifact, path: str) -> list[Any]:
    """Return the records of an artifact's file."""
    return [json.loads(line) for line in artifact.contents.reader.read(artifact.file(path)).splitlines()]


@pytest.fixture(scope="session")
def read_lines() -> Callable[[Artifact, str], list[Any]]:
    """Read a file of JSON lines of an artifact."""
    return json_lines
