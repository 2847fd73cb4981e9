"""`.at(url)`: the artifact is also where the user wants it, and the fingerprint does not know."""

from pathlib import Path

import pytest

import marin
from marin import Context, Placement, Records, Step, Value, fs
from marin.base.errors import ConfigurationError, StoreError
from marin.data.documents import DOCUMENTS
from marin.testing import FaultyStorage, Rule


class Looking(Step[Value[bool]]):
    """Whether its parent was published by the time it ran."""

    parent: Step[Value[int]]
    place: Placement[str]

    def run(self, ctx: Context) -> Value[bool]:
        return Value.write(ctx.output, fs.exists(f"{self.place}/manifest.json"))


class Three(Step[Value[int]]):
    """The number three."""

    def run(self, ctx: Context) -> Value[int]:
        return Value.write(ctx.output, 3)


def test_at_copies_the_artifact_once_and_never_counts(tmp_path: Path):
    store, place = tmp_path / "store", tmp_path / "published"
    step = Records(texts=["a b", "c"])
    artifact = marin.run(step, store=store, backend="inline")
    assert not place.exists()
    published = step.at(str(place))
    assert marin.run(published, store=store, backend="inline").digest == artifact.digest
    copy = place / "shards" / "00000" / DOCUMENTS
    original = Path(artifact.shards[0].file(DOCUMENTS).url)
    assert copy.read_bytes() == original.read_bytes()
    before = copy.stat().st_mtime_ns
    marin.run(published, store=store, backend="inline")
    assert copy.stat().st_mtime_ns == before


def test_at_another_artifact_takes_the_place(tmp_path: Path):
    store, place = tmp_path / "store", str(tmp_path / "published")
    for texts in (["a"], ["b"]):
        made = marin.run(Records(texts=texts).at(place), store=store, backend="inline")
        assert made.digest in (tmp_path / "published" / "manifest.json").read_text()


def test_at_damaged_original_is_refused(tmp_path: Path):
    store = tmp_path / "store"
    artifact = marin.run(Records(texts=["a"]), store=store, backend="inline")
    original = Path(artifact.shards[0].file(DOCUMENTS).url)
    data = bytearray(original.read_bytes())
    data[10] ^= 1
    original.write_bytes(bytes(data))
    with pytest.raises(StoreError, match="recorded digest"):
        marin.run(Records(texts=["a"]).at(str(tmp_path / "place")), store=store, backend="inline")
    assert not (tmp_path / "place" / "manifest.json").exists()


def test_at_object_storage_is_published_by_the_worker_and_a_folder_at_the_end(tmp_path: Path):
    storage = FaultyStorage.memory("published")
    for number, place in enumerate([storage.url("three"), str(tmp_path / "three")]):
        looking = Looking(parent=Three().at(place), place=place)
        was_there = marin.run(looking, store=tmp_path / f"store{number}", backend="inline").value
        assert was_there == (number == 0)
        assert fs.exists(f"{place}/manifest.json")


def test_at_storage_that_fails_the_worker_does_not_fail_the_step(tmp_path: Path):
    storage = FaultyStorage.memory("failing", [Rule("denied")])
    step = Three().at(storage.url("three"))
    with pytest.raises(StoreError):
        marin.run(step, store=tmp_path, backend="inline")
    planned = marin.plan([step], store=tmp_path)
    assert planned.steps[0].state == "cached"
    storage.rules = []
    marin.run(step, store=tmp_path, backend="inline")
    assert fs.exists(storage.url("three/manifest.json"))


def test_at_folder_of_a_submitted_tree_is_refused_before_anything_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MARIN_TREE", str(tmp_path))
    with pytest.raises(ConfigurationError, match="goes when the run ends") as refused:
        marin.run(Three().at("results"), store=tmp_path / "store", backend="inline")
    assert "s3://" in str(refused.value)
    assert not (tmp_path / "store" / "artifacts").exists()
