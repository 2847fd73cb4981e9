"""`.at(url)`: the artifact is also where the user wants it, and the fingerprint does not know."""

from pathlib import Path

import pytest

import marin
from marin import Records
from marin.base.errors import StoreError
from marin.data.documents import DOCUMENTS


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
