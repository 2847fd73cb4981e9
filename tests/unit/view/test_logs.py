"""Logs as they grow: each piece once, by step, attempt and rank, on files and on objects."""

from pathlib import Path

import pytest

from marin import fs
from marin.store import EventWriter, Store
from marin.view.logs import LogReader, Wanted

KEY = ("train", "ab" * 32)


@pytest.fixture(params=["local", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return Store.open(str(tmp_path / "store") if request.param == "local" else f"memory://{tmp_path}", write=True)


def begin(store: Store, attempt: str, *, name: str = "train/small") -> str:
    """Say that an attempt runs; return its folder."""
    writer = EventWriter(store.url, "run-1", attempt)
    writer.emit("state", name=name, step=KEY[0], fingerprint=KEY[1], attempt=attempt, state="running")
    writer.close()
    return store.attempt_folder(*KEY, attempt)


def texts(reader: LogReader) -> list[tuple[str, str]]:
    return [(chunk.file, chunk.text) for chunk in reader.poll()]


def test_log_is_read_once_as_it_grows_and_letters_stay_whole(store):
    folder = begin(store, "run-1-abababab-1")
    reader = LogReader(store, "run-1", Wanted())
    assert texts(reader) == []
    whole = "first\nsecond ü".encode()
    fs.replace(fs.join(folder, "log.txt"), whole[:-1])
    assert texts(reader) == [("log.txt", "first\nsecond ")]
    assert texts(reader) == []
    fs.replace(fs.join(folder, "log.txt"), whole + b"!\n")
    assert texts(reader) == [("log.txt", "ü!\n")]


def test_logs_are_those_of_the_attempt_and_rank_that_are_wanted(store):
    for attempt in (1, 2):
        folder = begin(store, f"run-1-abababab-{attempt}")
        for file in ("log.txt", "rank-0.log", "rank-10.log"):
            fs.replace(fs.join(folder, file), f"{attempt} {file}".encode())
        fs.replace(fs.join(folder, "result.json"), b"{}")
    fs.replace(fs.join(begin(store, "run-1-cdcdcdcd-1", name="other"), "log.txt"), b"other")

    def found(**wanted) -> list[str]:
        return [chunk.text for chunk in LogReader(store, "run-1", Wanted(**wanted)).poll()]

    assert len(found()) == 7
    assert found(step="other") == ["other"]
    assert found(step="train/small", attempt="2") == ["2 log.txt", "2 rank-0.log", "2 rank-10.log"]
    assert found(attempt="run-1-abababab-1", rank=10) == ["1 rank-10.log"]
    assert found(rank=1) == []
