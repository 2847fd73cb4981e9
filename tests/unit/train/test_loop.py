"""The loop: resumed equals undisturbed to the bit, whatever kills it; errors before and during training."""

import json
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch

from marin import fs
from marin.base.errors import CheckpointError, Interrupted
from marin.base.json import Json
from marin.model.config import Decoder
from marin.model.weights import read_tensors
from marin.train.config import AdamW, Cosine, Muon, TrainConfig, WarmupStableDecay
from marin.train.entry import files_of, record_of, train_source
from marin.train.launched import LaunchedMember
from marin.train.loop import Diverged

STEPS = 12
ADAM = TrainConfig(
    model=Decoder(layers=2, width=16, heads=2, vocab_size=40, context=16),
    optimizer=AdamW(lr=0.01),
    schedule=Cosine(warmup_steps=2),
    tokens=STEPS * 4 * 16,
    batch=4,
    seed=5,
    checkpoint_steps=1,
)
MUON = ADAM.model_copy(
    update={
        "optimizer": Muon(lr=0.02, others=AdamW(lr=0.02)),
        "schedule": WarmupStableDecay(warmup_steps=1),
        "checkpoint_steps": 5,
    }
)


class Killed(BaseException):
    """Stands for SIGKILL: nothing in the loop may catch it."""


@dataclass(frozen=True)
class RandomRows:
    """Nine rows of random tokens with some masked targets, so that runs pass several epochs."""

    digest: str = "d1"
    rows: np.ndarray = field(default_factory=lambda: np.random.default_rng(0).integers(0, 40, (9, 17)))

    def __len__(self) -> int:
        return len(self.rows)

    def batch(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        tokens, targets = self.rows[indices][:, :-1], self.rows[indices][:, 1:].copy()
        targets[indices == 3, 5:] = -100
        return tokens, targets


@dataclass(frozen=True)
class ScriptedMember(LaunchedMember):
    """A lone rank that calls `at` with its phase and step at every beat."""

    at: Callable[["ScriptedMember", str, int], None] = lambda member, phase, step: None
    metrics: list[dict[str, float]] = field(default_factory=list)
    done: list[tuple[float, float, str]] = field(default_factory=list)

    def beat(self, phase: str, step: int) -> None:
        self.at(self, phase, step)

    def metric(self, **values: float) -> None:
        self.metrics.append(values)

    def progress(self, done: float, total: float, unit: str) -> None:
        self.done.append((done, total, unit))


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def train(
    folder: Path,
    config: TrainConfig = ADAM,
    member: LaunchedMember | None = None,
    source: RandomRows | None = None,
    output: str = "output",
) -> dict[str, Json]:
    return train_source(
        member or LaunchedMember(),
        config=config,
        source=source or RandomRows(),
        checkpoints=str(folder / "checkpoints"),
        output=fs.FolderOutput(str(folder / output)),
        eos_id=0,
    )


def result(folder: Path, output: str = "output") -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((folder / output).iterdir())}


def raise_at(phase: str, step: int) -> Callable[[ScriptedMember, str, int], None]:
    def at(member: ScriptedMember, now: str, number: int) -> None:
        if (now, number) == (phase, step):
            raise Killed

    return at


@pytest.fixture(scope="module", params=[ADAM, MUON], ids=["adamw", "muon"])
def undisturbed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[TrainConfig, dict]:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("undisturbed")
    train(folder, request.param)
    return request.param, result(folder)


@pytest.mark.parametrize("phase", ["train", "checkpoint"])
@pytest.mark.parametrize("step", range(STEPS + 1))
def test_run_killed_at_any_step_and_resumed_equals_the_undisturbed_one(
    tmp_path: Path, undisturbed: tuple[TrainConfig, dict], step: int, phase: str
) -> None:
    config, expected = undisturbed
    try:
        train(tmp_path, config, ScriptedMember(at=raise_at(phase, step)))
    except Killed:
        assert not (tmp_path / "output" / "training.json").exists()
        train(tmp_path, config, LaunchedMember(generation=1))
    assert result(tmp_path) == expected


def test_run_killed_before_every_step_makes_progress_and_equals_the_undisturbed_one(
    tmp_path: Path, undisturbed: tuple[TrainConfig, dict]
) -> None:
    config, expected = undisturbed
    config = config.model_copy(update={"checkpoint_steps": 1})
    for step in range(1, STEPS + 1):
        with pytest.raises(Killed):
            train(
                tmp_path,
                config,
                ScriptedMember(generation=step, at=raise_at("write" if step == STEPS else "train", step)),
            )
    train(tmp_path, config, LaunchedMember(generation=STEPS + 1))
    assert result(tmp_path) == expected


def test_run_with_another_placement_learns_the_same(tmp_path: Path) -> None:
    train(tmp_path)
    record = json.loads(result(tmp_path)["training.json"])
    other = ADAM.model_copy(update={"micro_batch": 3, "log_every": 5, "checkpoint_steps": None})
    train(tmp_path / "other", other)
    again = json.loads(result(tmp_path / "other")["training.json"])
    assert [point["loss"] for point in again["curve"]] == pytest.approx(
        [point["loss"] for point in record["curve"]], rel=2e-6
    )
    assert again["config"] == record["config"]
    assert again["audit"] == record["audit"]


def test_run_asked_to_stop_checkpoints_and_continues_to_the_same_end(
    tmp_path: Path, undisturbed: tuple[TrainConfig, dict]
) -> None:
    config, expected = undisturbed

    def stop(member: ScriptedMember, phase: str, step: int) -> None:
        if (phase, step) == ("train", 6):
            member.stop.set()

    stopped = train(tmp_path, config, ScriptedMember(at=stop))
    assert stopped == {"stopped": 7}
    assert not (tmp_path / "output").exists()
    with pytest.raises(Interrupted, match="stopped at step 7"):
        files_of([stopped])
    train(tmp_path, config)
    assert result(tmp_path) == expected


def test_run_started_again_after_its_end_writes_the_same_result(tmp_path: Path) -> None:
    train(tmp_path)
    train(tmp_path, output="again")
    assert result(tmp_path) == result(tmp_path, "again")


def test_run_reports_files_record_metrics_and_progress(tmp_path: Path) -> None:
    member = ScriptedMember()
    returned = train(tmp_path, ADAM.model_copy(update={"log_every": 5}), member)
    assert [file.path for file in files_of([returned])] == ["config.json", "model.safetensors", "training.json"]
    record = record_of([returned])
    assert record.keys() == {"steps", "tokens", "parameters", "loss"}
    assert record["steps"] == STEPS
    assert [values["step"] for values in member.metrics] == [5, 10, 12]
    assert member.metrics[0].keys() == {"step", "tokens", "loss", "lr", "grad_norm", "tokens_per_second"}
    assert member.metrics[-1]["tokens"] == record["tokens"]
    assert member.metrics[-1]["lr"] == pytest.approx(0.001)
    assert member.done[-1] == (768, 768, "tokens")


def test_run_learns_its_rows(tmp_path: Path) -> None:
    train(tmp_path, ADAM.model_copy(update={"tokens": 60 * 64, "checkpoint_steps": 100}))
    curve = json.loads(result(tmp_path)["training.json"])["curve"]
    assert curve[0]["loss"] == pytest.approx(math.log(40), rel=0.02)
    assert curve[-1]["loss"] < 2.5


def test_run_logs_a_hash_of_its_samples_every_step(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="marin.train.loop"):
        train(tmp_path)
    lines = [record.getMessage() for record in caplog.records if "samples" in record.getMessage()]
    assert [line.split(" samples ")[0] for line in lines] == [f"step {step} rank 0" for step in range(STEPS)]
    assert len({line.split()[-1] for line in lines}) == STEPS


@pytest.mark.parametrize(
    ("change", "source", "message"),
    [
        ({"seed": 6}, RandomRows(), "`seed` was 5, now it is 6"),
        ({"optimizer": AdamW(lr=0.5)}, RandomRows(), r"`optimizer.lr` was 0.01, now it is 0.5"),
        ({"tokens": 128}, RandomRows(), "`tokens` was 768, now it is 128"),
        ({}, RandomRows(digest="d2"), "`dataset` was 'd1', now it is 'd2'"),
    ],
)
def test_run_resumed_with_another_order_or_configuration_names_both_values(
    tmp_path: Path, change: dict[str, object], source: RandomRows, message: str
) -> None:
    train(tmp_path)
    with pytest.raises(CheckpointError, match=message):
        train(tmp_path, ADAM.model_copy(update=change), source=source)


def test_run_that_diverges_stops_with_step_and_samples_and_saves_nothing_bad(tmp_path: Path) -> None:
    wild = ADAM.model_copy(update={"optimizer": AdamW(lr=1e30), "schedule": Cosine()})
    with pytest.raises(Diverged, match=r"nan at step [1-9]") as caught:
        train(tmp_path, wild)
    assert "sequences" in caught.value.where
    assert "lower `lr`" in caught.value.hint
    for path in (tmp_path / "checkpoints").glob("*/*.safetensors"):
        tensors = read_tensors(path.read_bytes(), where=str(path))
        assert all(bool(torch.isfinite(tensor).all()) for tensor in tensors.values())


def test_run_without_any_target_in_a_step_goes_on_with_a_zero_loss(tmp_path: Path) -> None:
    class Silent(RandomRows):
        def batch(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            tokens, targets = super().batch(indices)
            return tokens, np.full_like(targets, -100)

    returned = train(tmp_path, source=Silent())
    assert record_of([returned])["loss"] == 0.0
    assert record_of([returned])["tokens"] == 0
