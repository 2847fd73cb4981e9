"""Many reads at once: the same answers, asked together."""

import threading
import uuid
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from marin import fs
from marin.base.errors import StoreError


@pytest.fixture(params=["local", "memory"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path) if request.param == "local" else f"memory://{uuid.uuid4().hex}"


@pytest.mark.parametrize("count", [0, 1, 3, 200])
@pytest.mark.parametrize("threads", [None, 1, 4])
def test_many_answers_are_those_of_asking_one_by_one(root: str, count: int, threads: int | None):
    urls = [fs.join(root, f"{number}", "record.json") for number in range(count)]
    for url in urls[::2]:
        fs.write(url, url.encode())
    absent = fs.join(root, "absent", "record.json")
    asked = [*urls, absent, *urls]
    assert fs.read_many(asked, threads=threads) == {url: url.encode() for url in urls[::2]}
    assert fs.exists_many(asked, threads=threads) == set(urls[::2])
    folders = [url.rpartition("/")[0] for url in asked]
    there = {url.rpartition("/")[0] for url in urls[::2]}
    listed = fs.list_folders(folders, threads=threads)
    assert listed == {folder: ["record.json"] if folder in there else [] for folder in folders}
    assert list(listed) == list(dict.fromkeys(folders))


def test_read_many_refusal_is_an_error_and_no_absent_file(tmp_path: Path):
    (tmp_path / "folder").mkdir()
    fs.write(str(tmp_path / "x"), b"x")
    with pytest.raises(StoreError, match="storage refused"):
        fs.read_many([str(tmp_path / "x"), str(tmp_path / "folder")])


class Gathering(MemoryFileSystem):
    """Answers reads only once 64 of them wait: none would ever return if fewer were asked at once."""

    protocol = "gathering"
    barrier = threading.Barrier(64, timeout=30)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: object) -> bytes:
        self.barrier.wait()
        return path.encode()


def test_read_many_of_a_remote_store_waits_for_64_answers_at_once():
    fsspec.register_implementation("gathering", Gathering, clobber=True)
    urls = [f"gathering://records/{number}" for number in range(128)]
    assert list(fs.read_many(urls)) == urls
