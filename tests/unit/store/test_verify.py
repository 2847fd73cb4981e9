"""`verify`: what is checked, and what is no damage."""

import uuid
from pathlib import Path

import pytest

from marin import Context, Folder, Shard, Step, fs
from marin.graph.artifact import Sharded
from marin.graph.files import Output
from marin.run import api
from marin.store import Store, unlisted
from marin.store.verify import verify


def write(shard: Shard, output: Output) -> None:
    output.write("data", shard.name.encode() * 100)


class Pieces(Step[Sharded]):
    n: int

    def run(self, ctx: Context) -> Sharded:
        shards = [Shard(str(i), f"{i:064x}") for i in range(self.n)]
        return Sharded.write(ctx.output, shards=ctx.map(write, shards).shards)


class Empty(Step[Folder]):
    def run(self, ctx: Context) -> Folder:
        return Folder.write(ctx.output)


@pytest.fixture(params=["local", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    root = str(tmp_path / "store") if request.param == "local" else f"memory://{uuid.uuid4().hex}/store"
    api.run([Pieces(n=3), Empty()], store=root, backend="inline")
    return Store.open(root, write=False)


def test_verify_counts_each_file_once_though_shards_and_artifacts_name_it(store: Store):
    read: list[tuple[int, int]] = []
    done = verify(store, deep=True, progress=lambda now, total: read.append((now, total)))
    assert (done.checked, done.bytes, done.bad) == (3, 300, [])
    assert done.records == 2 + 2 + 3 + 1  # manifests, recipes, shards, the run
    assert read[-1] == (300, 300)
    assert verify(store, store.manifests("pieces"), deep=False).checked == 3
    assert verify(store, [], deep=True).checked == 0


def test_verify_bad_file_of_a_shard_is_said_once_and_of_the_artifact(store: Store):
    (pieces,) = store.manifests("pieces")
    file = store.contents(pieces).shards[1].files[0]
    fs.replace(file.url, b"1" * 99 + b"x")
    assert verify(store, deep=False).bad == []
    (bad,) = verify(store, deep=True).bad
    assert (bad.artifact, bad.file) == (store.artifact_url(pieces), file.url)
    assert "the file is damaged" in bad.problem
    fs.delete(file.url)
    (bad,) = verify(store, deep=True).bad
    assert bad.problem == "it is missing"


def test_verify_manifest_in_a_folder_that_is_not_its_own_is_bad(store: Store):
    (pieces,) = store.manifests("pieces")
    (empty,) = store.manifests("empty")
    url = fs.join(store.artifact_url(empty), "manifest.json")
    fs.replace(url, fs.read(fs.join(store.artifact_url(pieces), "manifest.json")))
    (bad,) = verify(store, deep=False).bad
    assert (bad.file, bad.problem) == (url, "the record is not of this folder")


def test_verify_file_that_goes_with_its_record_meanwhile_is_not_bad(store: Store):
    (pieces,) = store.manifests("pieces")
    url = fs.join(store.artifact_url(pieces), "manifest.json")
    shard = store.contents(pieces).shards[2]
    fs.replace(shard.files[0].url, b"damaged")
    assert len(verify(store, [pieces], deep=False).bad) == 1

    def take_away(now: int, total: int) -> None:
        unlisted.unlist(store.url, pieces, fs.read(url)) if fs.exists(url) else None

    assert verify(store, [pieces], deep=True, progress=take_away).bad == []
