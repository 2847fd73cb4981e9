"""A corpus of 1,000 files that changes by one: how many shards are computed, in every step that maps over shards."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from marin import Files, Records, Shuffle, Split, Step, Tokenize, TrainTokenizer
from marin.run import api
from marin.run.result import RunResult

FILES = 1000
SAME_SIZE = "A word of ten files, number {:04d}, and some more text so that it has a body.\n"

Change = Callable[[Path], None]


def corpus(folder: Path) -> None:
    for number in range(FILES):
        file = folder / f"{number % 10}" / f"{number:04d}.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(SAME_SIZE.format(number))


def pipeline(folder: Path) -> Step:
    documents = Files(url=f"{folder}/**/*.txt", shard_bytes=3_000).named("files")
    fixed = Records(texts=[SAME_SIZE.format(0)] * 20)
    tokenizer = TrainTokenizer(documents=fixed, vocab_size=300)
    kept = Split(documents=documents, keep="train", fraction=0.5).named("split")
    tokens = Tokenize(documents=kept, tokenizer=tokenizer).named("tokenize")
    return Shuffle(tokens=tokens, context=16, seed=0).named("shuffle")


def run(folder: Path, store: Path) -> RunResult:
    result = api.run_plan(api.plan(pipeline(folder), store=store), store=store, backend="inline")
    assert result.state == "done"
    return result


def computed(result: RunResult) -> dict[str, int]:
    mapped = ("files", "split", "tokenize")
    return {name: result.step(name).shards.get("computed", 0) for name in mapped}


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, RunResult]:
    folder, store = tmp_path_factory.mktemp("corpus"), tmp_path_factory.mktemp("store")
    corpus(folder)
    return folder, store, run(folder, store)


def test_first_run_computes_every_shard(first):
    _, _, result = first
    shards = result.step("files").shards
    assert 20 <= shards["total"] <= 40
    assert computed(result)["files"] == computed(result)["split"] == computed(result)["tokenize"] == shards["total"]


def edit(folder: Path) -> None:
    (folder / "3" / "0123.txt").write_text(SAME_SIZE.format(9999))


def add(folder: Path) -> None:
    (folder / "4" / "0124b.txt").write_text(SAME_SIZE.format(1))


def remove(folder: Path) -> None:
    (folder / "5" / "0125.txt").unlink()


def rename(folder: Path) -> None:
    (folder / "6" / "0126.txt").rename(folder / "7" / "0126 renamed.txt")


@pytest.mark.parametrize(("change", "most"), [(edit, 1), (add, 2), (remove, 1), (rename, 3)])
def test_one_file_of_a_thousand_costs_the_groups_that_hold_it(first, change: Change, most: int):
    folder, store, _ = first
    before = run(folder, store)
    change(folder)
    after = run(folder, store)
    total = after.step("files").shards["total"]
    assert before.step("files").state == "cached"
    found = computed(after)
    assert 1 <= found["files"] <= most
    assert found["split"] <= found["files"]
    assert found["tokenize"] <= found["files"]
    assert after.step("files").shards["reused"] == total - found["files"]


def test_touched_file_costs_nothing(first):
    folder, store, _ = first
    run(folder, store)
    later = time.time() + 5
    os.utime(folder / "8" / "0128.txt", (later, later))
    assert {step.state for step in run(folder, store).steps} == {"cached"}


def test_moved_corpus_costs_nothing(first, tmp_path: Path):
    folder, store, _ = first
    run(folder, store)
    moved = tmp_path / "elsewhere"
    folder.rename(moved)
    try:
        assert {step.state for step in run(moved, store).steps} == {"cached"}
    finally:
        moved.rename(folder)


def test_change_taken_back_costs_nothing(first):
    folder, store, _ = first
    file = folder / "9" / "0129.txt"
    text = file.read_text()
    run(folder, store)
    file.write_text(text.replace("0129", "9290"))
    assert computed(run(folder, store))["files"] == 1
    file.write_text(text)
    assert {step.state for step in run(folder, store).steps} == {"cached"}
