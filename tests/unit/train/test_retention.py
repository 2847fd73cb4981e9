"""Retention: which checkpoints stay, and that a crash anywhere between two storage calls loses none that should."""

import contextlib
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from marin.base.errors import CheckpointError, ConfigurationError
from marin.testing import Crash, FaultyStorage, Rule
from marin.train.checkpoint import Checkpoints
from marin.train.retention import Found, Keep, superfluous


def save(checkpoints: Checkpoints, step: int, *, generation: int = 1, score: float | None = None) -> str:
    return checkpoints.save(
        step=step,
        generation=generation,
        tensors={"model": {"w": torch.full((3,), float(step))}},
        state={"step": step},
        may_commit=lambda: True,
        score=score,
    )


def steps(checkpoints: Checkpoints) -> list[int]:
    return [each.step for each in checkpoints.found() if each.good]


@pytest.mark.parametrize(
    ("keep", "expected"),
    [
        (Keep(), [8, 9]),
        (Keep(last=1), [9]),
        (Keep(last=3), [7, 8, 9]),
        (Keep(every=3), [3, 6, 8, 9]),
        (Keep(at=(1, 5)), [1, 5, 8, 9]),
        (Keep(best=True), [4, 8, 9]),
        (Keep(every=4, at=[2], best=True), [2, 4, 8, 9]),
    ],
)
def test_checkpoints_that_stay_are_the_last_and_those_asked_for(
    tmp_path: Path, keep: Keep, expected: list[int]
) -> None:
    for step in range(1, 10):
        save(Checkpoints(str(tmp_path), keep=keep), step, score=abs(step - 4.2))
    assert steps(Checkpoints(str(tmp_path))) == expected


def test_pinned_checkpoint_stays_until_it_is_unpinned(tmp_path: Path) -> None:
    checkpoints = Checkpoints(str(tmp_path))
    name = save(checkpoints, 1)
    checkpoints.pin(name)
    for step in (2, 3, 4):
        save(checkpoints, step)
    assert steps(checkpoints) == [1, 3, 4]
    checkpoints.unpin(name)
    save(checkpoints, 5)
    assert steps(checkpoints) == [4, 5]
    with pytest.raises(CheckpointError, match="there is no checkpoint step-1"):
        checkpoints.pin("step-1")


def test_best_checkpoint_that_is_damaged_leaves_its_place_to_the_next(tmp_path: Path) -> None:
    checkpoints = Checkpoints(str(tmp_path), keep=Keep(best=True))
    best = save(checkpoints, 1, score=0.1)
    for step, score in ((2, 0.2), (3, 0.3)):
        save(checkpoints, step, score=score)
    (tmp_path / best / "BAD.json").write_text("{}")
    save(checkpoints, 4, score=0.4)
    save(checkpoints, 5, score=0.5)
    assert steps(checkpoints) == [2, 4, 5]


def test_keep_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"Keep\.last"):
        Keep(last=0)


FOUND = st.lists(
    st.tuples(st.integers(1, 12), st.integers(1, 3), st.booleans(), st.booleans(), st.booleans(), st.floats(0, 1)),
    max_size=12,
)
KEEPS = st.builds(
    Keep,
    last=st.integers(1, 3),
    every=st.none() | st.integers(1, 5),
    at=st.lists(st.integers(1, 12), max_size=3).map(tuple),
    best=st.booleans(),
)


@given(FOUND, KEEPS)
def test_superfluous_is_never_new_pinned_asked_for_or_the_only_good_one(
    drawn: list[tuple[int, int, bool, bool, bool, float]], keep: Keep
) -> None:
    found = sorted(
        Found(step, generation, f"{number}", committed, bad, pinned, score)
        for number, (step, generation, committed, bad, pinned, score) in enumerate(drawn)
    )
    gone = superfluous(found, keep)
    left = [each for each in found if each not in gone]
    good = [each for each in found if each.good]
    assert left[-1:] == found[-1:]
    assert [each for each in left if each.good][-keep.last :] == good[-keep.last :]
    assert not [each for each in gone if each.pinned]
    assert {each.step for each in good if keep.keeps(each.step)} <= {each.step for each in left if each.good}
    assert superfluous(left, keep) == []


@settings(max_examples=60)
@given(
    st.integers(1, 90),
    st.sampled_from(["crash-before", "crash-after"]),
    st.builds(Keep, last=st.integers(1, 2), every=st.none() | st.just(3), best=st.booleans()),
)
def test_crash_at_any_storage_call_loses_no_checkpoint_that_was_promised(at: int, fault: str, keep: Keep) -> None:
    storage = FaultyStorage.memory("lab", [Rule(fault, client="run", nth=at)])
    url = storage.url("checkpoints", client="run")
    promised: list[int] = []
    with contextlib.suppress(Crash):
        for step in range(1, 8):
            save(Checkpoints(url, keep=keep), step, score=1 / step)
            promised.append(step)
    after = Checkpoints(storage.url("checkpoints", client="next"), keep=keep)
    newest = after.newest()
    done = promised[-1] if promised else 0
    assert (newest.step if newest else 0) in (done, done + 1)
    for step in (8, 9, 10):
        save(after, step, generation=2, score=1 / step)
    expected = {step for step in [*promised, 8, 9, 10] if keep.keeps(step)} | set(range(10, 10 - keep.last, -1))
    assert set(steps(after)) - {done + 1} == expected - {done + 1}
    folders = {key.split("/")[1] for key in storage.objects.below("checkpoints")}
    assert folders == {each.name for each in after.found() if each.good}
