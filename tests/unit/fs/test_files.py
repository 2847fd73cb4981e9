"""Files at URLs: globs, pins, refusals."""

import contextlib
import os
import sqlite3
import time
from pathlib import Path

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from marin import fs
from marin.base.errors import ConfigurationError, InputError, StoreError
from marin.fs.pins import check_unchanged, pin
from marin.store import Store


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    for path in ("a.py", "b.txt", "deep/c.py", "deep/er/d.py", "skip/e.py", "skip/deep/f.py"):
        (tmp_path / "corpus" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "corpus" / path).write_text(path)
    return tmp_path / "corpus"


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*.py", ["a.py"]),
        ("**/*.py", ["a.py", "deep/c.py", "deep/er/d.py", "skip/deep/f.py", "skip/e.py"]),
        ("deep/**", ["c.py", "er/d.py"]),
        ("*/[ce].py", ["deep/c.py", "skip/e.py"]),
        ("?.txt", ["b.txt"]),
        ("a.py", ["a.py"]),
        ("deep", ["c.py", "er/d.py"]),
        ("deep?c.py", []),
        ("deep[!x]c.py", []),
        ("**/er/**/*.py", ["deep/er/d.py"]),
        ("deep/**/d.py", ["er/d.py"]),
        ("*.nothing", []),
    ],
)
def test_glob_finds_by_pattern(corpus: Path, pattern: str, expected: list[str]):
    assert [entry.path for entry in fs.glob(f"{corpus}/{pattern}")[1]] == expected


def test_glob_is_the_same_on_memory(corpus: Path):
    for path in corpus.rglob("*"):
        if path.is_file():
            fs.write(f"memory://globbed/{path.relative_to(corpus)}", path.read_bytes())
    for pattern in ("**/*.py", "*/[ce].py", "*.txt", "a.py"):
        local = [entry.path for entry in fs.glob(f"{corpus}/{pattern}")[1]]
        assert [entry.path for entry in fs.glob(f"memory://globbed/{pattern}")[1]] == local


def test_glob_excludes_whole_folders(corpus: Path):
    found = fs.glob(f"{corpus}/**/*.py", exclude=["skip/**"])[1]
    assert [entry.path for entry in found] == ["a.py", "deep/c.py", "deep/er/d.py"]


def test_pin_touched_file_hits_and_edited_file_does_not(corpus: Path, tmp_path: Path):
    memo = tmp_path / "memo.sqlite"
    before = pin([f"{corpus}/**/*.py"], memo=memo, clock_ns=later_ns)
    os.utime(corpus / "a.py", ns=(1, time.time_ns()))
    assert pin([f"{corpus}/**/*.py"], memo=memo) == before
    (corpus / "a.py").write_text("A.py")
    after = pin([f"{corpus}/**/*.py"], memo=memo)
    assert [left.path for left, right in zip(before, after, strict=True) if left != right] == ["a.py"]


def later_ns() -> int:
    return time.time_ns() + 3_000_000_000


def spoil(memo: Path) -> None:
    """Write into the memo what no file can have, so that a digest tells whether it was remembered."""
    with contextlib.closing(sqlite3.connect(memo)) as database, database:
        database.execute("update digests set digest = 'remembered'")


def test_pin_remembers_a_file_once_it_has_settled(corpus: Path, tmp_path: Path):
    memo, file = tmp_path / "memo.sqlite", str(corpus / "a.py")
    digest = pin([file], memo=memo)[0].digest
    assert not memo.exists()  # just written: the next edit could have the same times
    pin([file], memo=memo, clock_ns=later_ns)
    spoil(memo)
    assert pin([file], memo=memo)[0].digest == "remembered"
    os.utime(file, ns=(1, 1))
    assert pin([file], memo=memo)[0].digest == digest


def test_pin_edit_that_keeps_size_and_restores_the_time_is_seen(corpus: Path, tmp_path: Path):
    memo, file = tmp_path / "memo.sqlite", corpus / "a.py"
    os.utime(file, ns=(10**18, 10**18))
    before = pin([str(file)], memo=memo, clock_ns=later_ns)
    assert memo.exists()
    with file.open("r+b") as opened:
        opened.write(b"A")
    os.utime(file, ns=(10**18, 10**18))
    assert file.stat().st_size == before[0].size
    assert pin([str(file)], memo=memo)[0].digest == blake3(b"A.py").hexdigest() != before[0].digest


def test_pin_renamed_file_is_hashed_once_more_and_remembered(corpus: Path, tmp_path: Path):
    memo, file = tmp_path / "memo.sqlite", corpus / "a.py"
    digest = pin([str(file)], memo=memo, clock_ns=later_ns)[0].digest
    spoil(memo)
    renamed = str(file.rename(corpus / "z.py"))
    assert pin([renamed], memo=memo, clock_ns=later_ns)[0].digest == digest
    spoil(memo)
    assert pin([renamed], memo=memo)[0].digest == "remembered"


@pytest.mark.parametrize("change", ["edited", "deleted"])
def test_check_unchanged_names_the_input_that_changed(corpus: Path, tmp_path: Path, change: str):
    pinned = pin([f"{corpus}/**/*.py"])
    check_unchanged(pinned, memo=tmp_path / "memo.sqlite")
    file = corpus / "deep" / "c.py"
    if change == "edited":
        file.write_text("DEEP/C.PY"[: file.stat().st_size])
    else:
        file.unlink()
    with pytest.raises(InputError, match=r"input changed during the run: `deep/c\.py`"):
        check_unchanged(pinned, memo=tmp_path / "memo.sqlite")


def test_changed_file_of_the_users_own_is_not_said_to_be_made_anew(corpus: Path):
    (file,) = pin([f"{corpus}/a.py"])
    Path(file.url).write_bytes(b"x" * file.size)
    with pytest.raises(StoreError, match="is damaged") as caught:
        fs.read_file(file)
    assert "if it is your own input, put the recorded one back" in caught.value.hint


def test_pin_name_that_is_no_text_can_be_recorded(corpus: Path, tmp_path: Path):
    Path(os.fsdecode(os.fsencode(corpus) + b"/caf\xe9.rs")).write_text("x")
    recorded = pin([f"{corpus}/*.rs"], memo=tmp_path / "memo.sqlite", clock_ns=later_ns)
    assert [file.path for file in recorded] == [r"caf\xe9.rs"]
    check_unchanged(recorded, memo=tmp_path / "memo.sqlite")
    store = Store.open(str(tmp_path / "store"), write=True)
    store.write_recipe("read", "ab" * 32, {"inputs": [[file.path, file.digest] for file in recorded]})
    assert store.recipe("read", "ab" * 32) == {"inputs": [[file.path, file.digest] for file in recorded]}


def test_pin_folder_whose_reading_is_refused_is_an_input_error(corpus: Path):
    with pytest.raises(InputError, match="no file matches"):
        pin([f"{corpus}/a.py/*.py"])


def test_pin_damaged_memo_is_passed_over(corpus: Path, tmp_path: Path):
    memo = tmp_path / "memo.sqlite"
    before = pin([f"{corpus}/*.py"], memo=memo, clock_ns=later_ns)
    memo.write_bytes(b"not a database at all")
    assert pin([f"{corpus}/*.py"], memo=memo) == before


def test_pin_moved_corpus_keeps_paths_and_digests(corpus: Path):
    before = [(file.path, file.digest) for file in pin([f"{corpus}/**/*.py"])]
    moved = corpus.rename(corpus.parent / "elsewhere")
    assert [(file.path, file.digest) for file in pin([f"{moved}/**/*.py"])] == before


def test_pin_without_a_match_is_an_error(corpus: Path):
    with pytest.raises(InputError, match="no file matches"):
        pin([f"{corpus}/*.rs"])


def test_pin_link_to_nowhere_is_named(corpus: Path):
    (corpus / "gone.py").symlink_to(corpus / "never")
    with pytest.raises(InputError, match=r"cannot read the input file 'gone\.py'"):
        pin([f"{corpus}/*.py"])


def test_glob_does_not_follow_links_in_circles(corpus: Path):
    (corpus / "loop").symlink_to(corpus)
    assert len(fs.glob(f"{corpus}/**/*.py")[1]) == 5


def test_read_of_nothing_says_where(tmp_path: Path):
    with pytest.raises(fs.NotFound) as caught:
        fs.read(str(tmp_path / "absent"))
    assert caught.value.where.endswith("absent")


def test_store_below_a_file_is_refused_with_a_hint(tmp_path: Path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError) as caught:
        Store.open(str(tmp_path / "file" / "store"), write=True)
    assert "--store" in caught.value.hint


def test_unknown_protocol_is_a_configuration_error():
    with pytest.raises(ConfigurationError, match="nothing here can read"):
        fs.read("gopher://somewhere/x")


@given(st.lists(st.binary(max_size=50), max_size=5))
def test_stream_digest_is_that_of_the_file(pieces: list[bytes]):
    url = "memory://streams/x"
    with fs.write_stream(url) as stream:
        for piece in pieces:
            stream.write(piece)
    assert fs.read(url) == b"".join(pieces)
    assert stream.written == fs.digest_file(url)


def test_read_range_and_local_path(tmp_path: Path):
    for url in (str(tmp_path / "r"), "memory://ranges/r"):
        fs.write(url, b"0123456789")
        assert fs.read_range(url, 3, 4) == b"3456"
        assert fs.read_range(url, 8, 9) == b"89"
        assert fs.list_folder(url.rsplit("/", 1)[0]) == ["r"]
    assert fs.local_path("memory://ranges/r") is None


def test_pin_of_a_pipe_is_refused_and_does_not_wait(corpus: Path):
    os.mkfifo(corpus / "pipe.py")
    with pytest.raises(InputError, match="no regular file"):
        pin([f"{corpus}/*.py"])
