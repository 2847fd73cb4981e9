"""Divided among ranks in any way, a run learns what one rank learns; what one layout saves, any other continues."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from marin.model.config import Decoder
from marin.model.weights import read_tensors
from marin.train.config import AdamW, Cosine, Muon, TrainConfig
from marin.train.parallel import Parallel

TOLERANCE = 2e-6
RESHARDED = 1e-5
CONTEXT = 16
STEPS = 12
BASE = TrainConfig(
    # three rows of some norms and 50 of the embedding: neither 2 nor 4 shards are even
    model=Decoder(layers=2, width=18, heads=2, head_width=6, qk_norm=True, vocab_size=50, context=CONTEXT),
    optimizer=Muon(lr=0.003, others=AdamW(lr=0.003)),
    schedule=Cosine(warmup_steps=2),
    tokens=STEPS * 7 * CONTEXT,
    batch=7,
    seed=5,
    checkpoint_steps=4,
    document_mask=True,
    ema=0.9,
)
ADAM = {"optimizer": AdamW(lr=0.003), "ema": None}
UNTIED = Decoder(layers=2, width=16, heads=4, kv_heads=2, qkv_bias=True, tied=False, vocab_size=50, context=CONTEXT)
LAYOUTS = {
    "fsdp2": (2, {"parallel": Parallel(shard="all")}),
    "fsdp4": (4, {"parallel": Parallel(shard="all"), "micro_batch": 1}),
    "fsdp4-step": (4, {"parallel": Parallel(shard=4, add_gradients="step"), "micro_batch": 1}),
    "hsdp": (4, {"parallel": Parallel(shard=2)}),
    "tp2": (2, {"parallel": Parallel(tensor=2)}),
    "fsdp2-tp2": (4, {"parallel": Parallel(shard="all", tensor=2), "micro_batch": 3}),
    "ddp2-tp2": (4, {"parallel": Parallel(tensor=2)}),
}


def train(folder: Path, jobs: list[tuple[str, int, TrainConfig, str]]) -> None:
    """Run jobs of (name, ranks, configuration, checkpoints' name) in a process of their own."""
    rows = [
        {
            "name": name,
            "world_size": world_size,
            "config": config.model_dump(mode="json"),
            "checkpoints": str(folder / f"{checkpoints}.checkpoints"),
        }
        for name, world_size, config, checkpoints in jobs
    ]
    (folder / "jobs.json").write_text(json.dumps(rows))
    command = [sys.executable, str(Path(__file__).with_name("layouts.py")), str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr


def points(folder: Path, name: str) -> tuple[list[float], list[float]]:
    curve = json.loads((folder / name / "training.json").read_text())["curve"]
    return [point["loss"] for point in curve], [point["grad_norm"] for point in curve]


def weights(folder: Path, name: str) -> dict[str, torch.Tensor]:
    return read_tensors((folder / name / "model.safetensors").read_bytes(), where=name)


def assert_alike(folder: Path, name: str, single: str) -> None:
    (losses, norms), (expected, expected_norms) = points(folder, name), points(folder, single)
    assert losses == pytest.approx(expected, rel=TOLERANCE)
    assert norms == pytest.approx(expected_norms, rel=RESHARDED)
    own, theirs = weights(folder, name), weights(folder, single)
    assert own.keys() == theirs.keys()
    assert all(torch.allclose(own[key], theirs[key], rtol=1e-3, atol=1e-5) for key in own)
    audits = [json.loads((folder / each / "training.json").read_text())["audit"] for each in (name, single)]
    assert audits[0] == audits[1]


def with_(**changes: object) -> TrainConfig:
    return BASE.model_copy(update=changes)


def run_layouts(folder: Path, names: list[str], **changes: object) -> None:
    jobs = [("single", 1, with_(**changes), "single")]
    jobs += [(name, LAYOUTS[name][0], with_(**{**changes, **LAYOUTS[name][1]}), name) for name in names]
    train(folder, jobs)
    for name in names:
        assert_alike(folder, name, "single")


def test_matrices_and_state_divided_among_ranks_learn_what_one_rank_learns(tmp_path: Path) -> None:
    run_layouts(tmp_path, ["fsdp2-tp2"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [{}, {**ADAM, "model": UNTIED}, {**ADAM, "model": UNTIED, "precision": "float32", "recompute": "block"}],
    ids=["muon-tied", "adamw-untied", "recompute"],
)
def test_every_layout_learns_what_one_rank_learns(tmp_path: Path, changes: dict[str, object]) -> None:
    run_layouts(tmp_path, list(LAYOUTS), **changes)


def drop_after(checkpoints: Path, step: int) -> None:
    """Remove the checkpoints behind a step, as if the run had been killed then."""
    for folder in checkpoints.iterdir():
        if int(folder.name[5:13]) > step:
            for file in folder.iterdir():
                file.unlink()
            folder.rmdir()


def test_checkpoint_of_one_layout_continues_in_another_and_to_the_same_bits_in_its_own(tmp_path: Path) -> None:
    divided = with_(parallel=Parallel(shard="all"))
    train(tmp_path, [("whole", 2, divided, "run")])
    drop_after(tmp_path / "run.checkpoints", 8)
    other = tmp_path / "other.checkpoints"
    other.mkdir()
    for folder in (tmp_path / "run.checkpoints").iterdir():
        (other / folder.name).mkdir()
        for file in folder.iterdir():
            (other / folder.name / file.name).write_bytes(file.read_bytes())
    train(tmp_path, [("again", 2, divided, "run"), ("alone", 1, BASE, "other")])
    for name in ("model.safetensors", "training.json"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert points(tmp_path, "alone")[0] == pytest.approx(points(tmp_path, "whole")[0], rel=RESHARDED)


@pytest.mark.slow
def test_run_whose_layout_changes_at_every_start_learns_what_one_rank_learns(tmp_path: Path) -> None:
    steps = [
        (1, {}),
        *[LAYOUTS[name] for name in ("fsdp2", "fsdp2-tp2")],
        (3, {"parallel": Parallel(shard=3)}),
        (1, {}),
    ]
    train(tmp_path, [("single", 1, with_(checkpoint_steps=2), "run")])
    for number, (world_size, change) in enumerate(steps):
        drop_after(tmp_path / "run.checkpoints", STEPS - 1)
        config = with_(checkpoint_steps=2, **change)
        train(tmp_path, [(f"{number}", world_size, config, "run")])
        assert points(tmp_path, f"{number}")[0] == pytest.approx(points(tmp_path, "single")[0], rel=RESHARDED)
