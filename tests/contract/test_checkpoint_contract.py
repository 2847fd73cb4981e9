"""Checkpoints on every kind of storage: any file damaged, a crash or a full disk at any call, and nothing is lost."""

import contextlib
import itertools

import pytest
import torch

from marin import fs
from marin.base.errors import CheckpointError, StoreError
from marin.testing import Crash, FaultyStorage, Rule
from marin.train.checkpoint import Checkpoints
from marin.train.retention import Keep

FILES = ("model.safetensors", "optimizer.safetensors", "state.json", "MANIFEST.json")


def save(checkpoints: Checkpoints, step: int, *, generation: int = 1) -> str:
    return checkpoints.save(
        step=step,
        generation=generation,
        tensors={"model": {"w": torch.full((3, 2), float(step))}, "optimizer": {"m": torch.arange(4.0) * step}},
        state={"step": step},
        may_commit=lambda: True,
    )


def newest_step(checkpoints: Checkpoints) -> int:
    loaded = checkpoints.newest()
    assert loaded is not None
    assert loaded.tensors["model"]["w"].tolist() == [[loaded.step] * 2] * 3
    assert loaded.tensors["optimizer"]["m"].tolist() == [0, loaded.step, 2 * loaded.step, 3 * loaded.step]
    return loaded.step


def damaged(data: bytes, harm: str) -> bytes:
    if harm == "truncated":
        return data[:-3]
    changed = bytearray(data)
    changed[{"first": 0, "middle": len(data) // 2, "last": len(data) - 2}[harm]] ^= 0x10
    return bytes(changed)


def test_checkpoint_with_any_file_flipped_truncated_or_deleted_is_passed_over(root: str) -> None:
    harms = list(itertools.product(FILES, ("first", "middle", "last", "truncated", "deleted")))
    if not fs.is_local(root):  # what is read there is compared by the same code
        harms = harms[1::3]
    checkpoints = Checkpoints(root)
    for step, (file, harm) in enumerate(harms, 1):
        save(checkpoints, 2 * step)
        url = fs.join(root, save(checkpoints, 2 * step + 1), file)
        if harm == "deleted":
            fs.delete(url)
        else:
            fs.replace(url, damaged(fs.read(url), harm))
        assert newest_step(checkpoints) == 2 * step, (file, harm)
        assert newest_step(Checkpoints(root)) == 2 * step, (file, harm)
    for found in checkpoints.found():
        if found.good and found.step % 2 == 0:
            fs.delete(fs.join(root, found.name, "state.json"))
    with pytest.raises(CheckpointError, match="checkpoints are damaged"):
        checkpoints.newest()


def test_checkpoints_come_back_are_pruned_and_taken_over(root: str) -> None:
    checkpoints = Checkpoints(root, keep=Keep(every=3))
    names = {step: save(checkpoints, step) for step in range(1, 8)}
    assert [each.step for each in checkpoints.found()] == [3, 6, 7]
    assert [each.step for each in checkpoints.readable(at_most=6)] == [6, 3]
    assert [name for name in fs.list_folder(root) if names[1] in name] == []
    other = Checkpoints(fs.join(root, "other"))
    for _ in range(2):
        other.take_over(checkpoints, names[3])
    assert newest_step(other) == 3


@pytest.mark.parametrize("fault", ["crash-before", "crash-after", "full"])
def test_save_that_fails_at_any_storage_call_leaves_the_one_before_or_the_new_one(fault: str) -> None:
    storage = FaultyStorage.memory("counted")
    for step in (1, 2, 3):
        before = len(storage.log)
        save(Checkpoints(storage.url("c")), step)
    calls = len(storage.log) - before
    assert calls > 8
    for nth in range(1, calls + 1):
        storage = FaultyStorage.memory("lab")
        url = storage.url("c", client="run")
        save(Checkpoints(url), 1)
        save(Checkpoints(url), 2)
        storage.rules = [Rule(fault, nth=nth)]
        committed = False
        with contextlib.suppress(Crash, StoreError):
            save(Checkpoints(url), 3)
            committed = True
        storage.rules = []
        after = Checkpoints(storage.url("c", client="next"))
        assert newest_step(after) in ((3,) if committed else (2, 3)), nth
        for step in (4, 5):
            save(after, step, generation=2)
        assert [each.step for each in after.found()] == [4, 5], nth
        assert {key.split("/")[1] for key in storage.objects.below("c")} == {each.name for each in after.found()}, nth
