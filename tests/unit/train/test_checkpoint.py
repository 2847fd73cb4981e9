"""Checkpoints: found again, verified, passed over when damaged, never silently ignored, fenced, pruned."""

import json
from pathlib import Path

import pytest
import torch

from marin.base.errors import CheckpointError
from marin.train.checkpoint import Checkpoints

FILES = ("model.safetensors", "optimizer.safetensors", "state.json", "MANIFEST.json")


def save(checkpoints: Checkpoints, step: int, generation: int = 1, current: bool = True) -> str:
    return checkpoints.save(
        step=step,
        generation=generation,
        tensors={"model": {"w": torch.full((3, 2), float(step))}, "optimizer": {"m": torch.arange(4.0)}},
        state={"step": step},
        may_commit=lambda: current,
    )


def newest_step(checkpoints: Checkpoints) -> int | None:
    loaded = checkpoints.newest()
    return None if loaded is None else int(loaded.state["step"])


def test_newest_of_an_empty_folder_is_none(tmp_path: Path) -> None:
    assert Checkpoints(str(tmp_path / "nothing")).newest() is None
    (tmp_path / "generations").mkdir()
    assert Checkpoints(str(tmp_path)).newest() is None


def test_checkpoint_saved_and_loaded_has_equal_tensors_and_state(tmp_path: Path) -> None:
    checkpoints = Checkpoints(str(tmp_path))
    name = save(checkpoints, 7)
    assert sorted(path.name for path in (tmp_path / name).iterdir()) == sorted(FILES)
    loaded = checkpoints.newest()
    assert loaded is not None
    assert loaded.name == name
    assert loaded.state == {"step": 7}
    assert torch.equal(loaded.tensors["model"]["w"], torch.full((3, 2), 7.0))
    assert torch.equal(loaded.tensors["optimizer"]["m"], torch.arange(4.0))


def test_checkpoints_beyond_the_last_two_are_removed_with_torn_ones_before_them(tmp_path: Path) -> None:
    checkpoints = Checkpoints(str(tmp_path))
    (tmp_path / "step-00000001.g001.abcd").mkdir()
    (tmp_path / "step-00000001.g001.abcd" / "model.safetensors").write_bytes(b"torn")
    for step in (2, 4, 6, 8):
        save(checkpoints, step)
    assert [found.step for found in checkpoints.found()] == [6, 8]
    assert newest_step(checkpoints) == 8


def test_checkpoint_without_manifest_does_not_count(tmp_path: Path) -> None:
    checkpoints = Checkpoints(str(tmp_path))
    name = save(checkpoints, 2)
    (tmp_path / name / "MANIFEST.json").unlink()
    assert newest_step(checkpoints) is None


@pytest.mark.parametrize("harm", ["flip first", "flip middle", "flip last", "truncate", "empty", "delete"])
@pytest.mark.parametrize("file", FILES)
def test_checkpoint_with_any_file_damaged_falls_back_to_the_one_before(tmp_path: Path, file: str, harm: str) -> None:
    checkpoints = Checkpoints(str(tmp_path))
    save(checkpoints, 2)
    path = tmp_path / save(checkpoints, 4) / file
    damage(path, harm)
    assert newest_step(checkpoints) == 2
    assert newest_step(Checkpoints(str(tmp_path))) == 2
    save(checkpoints, 3, generation=2)
    assert newest_step(checkpoints) == 3


@pytest.mark.parametrize("file", FILES)
def test_folder_with_only_damaged_checkpoints_is_refused_rather_than_restarted(tmp_path: Path, file: str) -> None:
    checkpoints = Checkpoints(str(tmp_path))
    damage(tmp_path / save(checkpoints, 2) / file, "flip middle")
    for _ in range(2):
        with pytest.raises(CheckpointError, match="all 1 checkpoints are damaged") as caught:
            checkpoints.newest()
    assert "delete the folder" in caught.value.hint


def test_damaged_checkpoints_do_not_push_out_good_ones(tmp_path: Path) -> None:
    checkpoints = Checkpoints(str(tmp_path))
    good = save(checkpoints, 2)
    damage(tmp_path / save(checkpoints, 4) / "model.safetensors", "flip last")
    assert newest_step(checkpoints) == 2
    save(checkpoints, 6, generation=2)
    assert good in {found.name for found in checkpoints.found()}


def test_checkpoint_of_a_superseded_generation_is_not_committed(tmp_path: Path) -> None:
    checkpoints = Checkpoints(str(tmp_path))
    save(checkpoints, 2, generation=2)
    with pytest.raises(CheckpointError, match="a newer generation than 1"):
        save(checkpoints, 9, generation=1, current=False)
    assert newest_step(checkpoints) == 2


def test_manifest_with_another_files_digest_is_damaged(tmp_path: Path) -> None:
    checkpoints = Checkpoints(str(tmp_path))
    save(checkpoints, 2)
    path = tmp_path / save(checkpoints, 4) / "MANIFEST.json"
    record = json.loads(path.read_text())
    record["files"]["model.safetensors"]["digest"] = "0" * 64
    path.write_text(json.dumps(record))
    assert newest_step(checkpoints) == 2


def damage(path: Path, harm: str) -> None:
    data = bytearray(path.read_bytes())
    if harm == "delete" and path.name != "MANIFEST.json":
        path.unlink()
        return
    if harm in ("empty", "delete"):
        data.clear()
    elif harm == "truncate":
        del data[-3:]
    else:
        place = {"flip first": 0, "flip middle": len(data) // 2, "flip last": len(data) - 2}[harm]
        data[place] ^= 0x10
    path.write_bytes(data)
