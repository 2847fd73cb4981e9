"""Divided among ranks in any way, a run learns what one rank learns; what one layout saves, any other continues."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from marin.model.config import Decoder
from marin.model.weights import read_tensors
from marin.train.config import AdamW, Cosine, Muon, TrainConfig
from marin.train.layout import Layout
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


class Job(NamedTuple):
    """One run, by a number of ranks; `continues`: another's name and the step at which it takes over."""

    name: str
    world_size: int
    config: TrainConfig
    continues: tuple[str, int] | None = None


def train(folder: Path, jobs: list[Job]) -> None:
    rows = [{**job._asdict(), "config": job.config.model_dump(mode="json")} for job in jobs]
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


def test_divided_run_learns_what_one_rank_learns_and_either_continues_the_other(tmp_path: Path) -> None:
    world_size, change = LAYOUTS["fsdp2-tp2"]
    divided = with_(**change)
    train(
        tmp_path,
        [
            Job("single", 1, BASE),
            Job("divided", world_size, divided),
            Job("again", world_size, divided, continues=("divided", 8)),
            Job("alone", 1, BASE, continues=("divided", 8)),
        ],
    )
    assert_alike(tmp_path, "divided", "single")
    for name in ("model.safetensors", "training.json"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "divided" / name).read_bytes()
    assert points(tmp_path, "alone")[0] == pytest.approx(points(tmp_path, "single")[0], rel=RESHARDED)


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [{}, {**ADAM, "model": UNTIED}, {**ADAM, "model": UNTIED, "recompute": "block", "document_mask": False}],
    ids=["muon-tied", "adamw-untied", "recompute"],
)
def test_every_layout_learns_what_one_rank_learns(tmp_path: Path, changes: dict[str, object]) -> None:
    jobs = [Job("single", 1, with_(**changes))]
    jobs += [Job(name, world_size, with_(**{**changes, **change})) for name, (world_size, change) in LAYOUTS.items()]
    train(tmp_path, jobs)
    for name in LAYOUTS:
        assert_alike(tmp_path, name, "single")


@pytest.mark.slow
def test_run_whose_layout_changes_at_every_start_learns_what_one_rank_learns(tmp_path: Path) -> None:
    layouts = [(1, {}), LAYOUTS["fsdp2"], LAYOUTS["fsdp2-tp2"], (3, {"parallel": Parallel(shard=3)}), (1, {})]
    jobs, step = [Job("single", 1, with_(checkpoint_steps=2))], 0
    for number, (world_size, change) in enumerate(layouts):
        continues = (jobs[-1].name, step) if step else None
        jobs.append(Job(f"{number}", world_size, with_(checkpoint_steps=2, **change), continues))
        step += 2
    train(tmp_path, jobs)
    for job in jobs:
        assert points(tmp_path, job.name)[0] == pytest.approx(points(tmp_path, "single")[0], rel=RESHARDED)


@settings(max_examples=40, deadline=None)
@given(
    num_ranks=st.sampled_from([1, 2, 3, 4, 6, 12]),
    rows=st.integers(1, 20),
    columns=st.integers(1, 3),
    tensor=st.sampled_from([1, 2, 3]),
    data=st.data(),
)
def test_pieces_of_all_places_joined_are_the_whole(
    num_ranks: int, rows: int, columns: int, tensor: int, data: st.DataObject
) -> None:
    assume(num_ranks % tensor == 0)
    shard = data.draw(st.sampled_from([n for n in range(1, 13) if (num_ranks // tensor) % n == 0]))
    layout = Layout(Parallel(shard=shard, tensor=tensor).axes(num_ranks))
    for name in ("model.norm.weight", "momentum.x.q_proj.weight", "x.down_proj.weight", "x.k_proj.bias"):
        shape = (6 * rows,) if name.endswith("bias") else (6 * rows, 6 * columns) if "proj" in name else (rows,)
        whole = torch.arange(math.prod(shape)).view(shape)
        pieces = [layout.piece(name, whole, place) for place in range(layout.num_places)]
        assert torch.equal(layout.joined(name, pieces), whole)
        assert [piece.shape for piece in pieces] == [
            layout.shape(name, whole.shape, place) for place in range(layout.num_places)
        ]
        held = sum(layout.piece(name, whole, rank % layout.num_places).numel() for rank in range(num_ranks))
        assert held == layout.copies(name) * whole.numel()
