"""Who made an artifact: the commit, what differed from it, and what was installed; asked only when something runs."""

import hashlib
import importlib.metadata
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from marin import Context, Folder, Step
from marin.run import api
from marin.run.producer import detailed, installed, this_producer
from marin.store import Manifest, Producer, Store, read_lock


class Letter(Step[Folder]):
    letter: str

    def run(self, ctx: Context) -> Folder:
        ctx.output.write("letter", self.letter.encode())
        return Folder.write(ctx.output)


def git(*arguments: str) -> str:
    identity = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org")
    return subprocess.run(["git", *identity, *arguments], check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one commit, as working folder."""
    folder = tmp_path / "repository"
    (folder / "below").mkdir(parents=True)
    monkeypatch.chdir(folder)
    git("init", "-q")
    Path("tracked.py").write_text("x = 1\n")
    Path(".gitignore").write_text("ignored\n")
    git("add", ".")
    git("commit", "-q", "-m", "first")
    return folder


def producer(store: Path, hashed_bytes: int = 1000) -> Producer:
    return detailed(this_producer(), str(store), hashed_bytes=hashed_bytes)


def manifest_of(store: Path, letter: str) -> Manifest:
    result = api.run_plan(api.plan([Letter(letter=letter)], store=store), store=store, backend="inline")
    opened = Store.open(str(store), write=False)
    return opened.find([("letter", str(result.steps[0].fingerprint))])[str(result.steps[0].fingerprint)]


def test_producer_of_a_clean_tree_has_its_commit_and_no_difference(repository: Path, tmp_path: Path):
    made = manifest_of(tmp_path / "store", "a").producer
    assert (made.commit, made.dirty, made.diff) == (git("rev-parse", "HEAD"), False, None)
    assert made.folder == str(repository)
    Path("ignored").write_text("x")
    assert manifest_of(tmp_path / "store", "b").producer.diff is None


def test_producer_of_a_changed_tree_has_a_digest_of_what_changed(repository: Path, tmp_path: Path, monkeypatch):
    store = tmp_path / "store"
    Path("tracked.py").write_text("x = 2\n")
    edited = producer(store)
    assert (edited.dirty, edited.diff) == (True, producer(store).diff)
    monkeypatch.chdir(repository / "below")
    assert producer(store).diff == edited.diff
    monkeypatch.chdir(repository)
    git("config", "diff.noprefix", "true")
    git("config", "color.ui", "always")
    assert replace(producer(store), folder="") == replace(edited, folder="")
    Path("new.py").write_text("y = 1\n")
    added = producer(store).diff
    Path("new.py").write_text("y = 2\n")
    assert len({edited.diff, added, producer(store).diff}) == 3
    Path("new.py").unlink()
    Path("tracked.py").write_text("x = 1\n")
    assert (producer(store).dirty, producer(store).diff) == (False, None)


def test_producer_leaves_the_store_in_the_tree_out(repository: Path):
    assert manifest_of(repository / ".marin", "a").producer.diff is None
    made = manifest_of(repository / ".marin", "b").producer
    assert (made.dirty, made.diff) == (False, None)


def test_producer_of_files_too_large_to_read_goes_by_their_size(repository: Path, tmp_path: Path):
    Path("data.bin").write_bytes(b"x" * 100)
    before = producer(tmp_path / "store", hashed_bytes=10).diff
    Path("data.bin").write_bytes(b"y" * 100)
    assert producer(tmp_path / "store", hashed_bytes=10).diff == before
    Path("data.bin").write_bytes(b"y" * 101)
    assert producer(tmp_path / "store", hashed_bytes=10).diff != before


def test_producer_outside_a_repository_has_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    made = producer(tmp_path / "store")
    assert (made.commit, made.dirty, made.diff) == (None, False, None)


def test_producer_names_what_was_installed_and_the_store_keeps_the_list_once(tmp_path: Path):
    made = [manifest_of(tmp_path / "store", letter).producer for letter in "ab"]
    assert made[0].lock == made[1].lock is not None
    assert len(list((tmp_path / "store" / "code" / "locks").iterdir())) == 1
    text = read_lock(str(tmp_path / "store"), str(made[0].lock))
    assert text is not None
    assert hashlib.sha256(text.encode()).hexdigest() == made[0].lock
    assert text.splitlines() == sorted(text.splitlines())
    assert f"pydantic=={importlib.metadata.version('pydantic')}" in text.splitlines()
    assert len({line.split("==")[0] for line in text.splitlines()}) == len(text.splitlines())


def test_installed_reads_the_head_of_each_description(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    described = {"METADATA": "Metadata-Version: 2.1\nName: Odd_Name\nVersion:  1.0 \n\nName: other\nVersion: 9\n"}
    for folder, files in (
        ("odd-1.dist-info", described),
        ("broken-2.dist-info", {}),
        ("egg.egg-info", {"PKG-INFO": "Name: egg\nVersion: 3\n"}),
    ):
        (tmp_path / folder).mkdir()
        for name, text in files.items():
            (tmp_path / folder / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    lines = installed.__wrapped__().splitlines()
    assert {"odd-name==1.0", "egg==3"} <= set(lines)
    assert not {line for line in lines if line.startswith(("other", "broken"))}


def test_damaged_list_of_what_was_installed_is_not_believed(tmp_path: Path):
    made = manifest_of(tmp_path / "store", "a").producer
    next((tmp_path / "store" / "code" / "locks").iterdir()).write_text("pydantic==0\n")
    assert read_lock(str(tmp_path / "store"), str(made.lock)) is None
    assert read_lock(str(tmp_path / "store"), "0" * 64) is None


def test_run_with_everything_cached_asks_nothing(tmp_path: Path):
    manifest_of(tmp_path / "store", "a")
    shutil.rmtree(tmp_path / "store" / "code" / "locks")
    manifest_of(tmp_path / "store", "a")
    assert not (tmp_path / "store" / "code" / "locks").exists()


def test_record_of_an_older_marin_has_no_difference_and_no_constructor(tmp_path: Path):
    manifest = manifest_of(tmp_path / "store", "a")
    assert manifest.constructor is not None
    bare = replace(manifest, producer=Producer(user="ada"), constructor=None)
    assert (bare.producer.diff, bare.producer.lock) == (None, None)
