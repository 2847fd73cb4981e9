"""Checkpoints written while training goes on: of their step, one at a time, and no failure is passed over."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from marin import fs
from marin.base.errors import CheckpointError, StoreError
from marin.model.config import Decoder
from marin.testing import FaultyStorage, Rule
from marin.train.checkpoint import Checkpoints
from marin.train.config import AdamW, Constant, TrainConfig
from marin.train.entry import train_source
from marin.train.launched import LaunchedMember
from marin.train.looks import Watched
from marin.train.retention import Keep
from marin.train.saving import Saver
from marin.train.validation import HeldOut


class Gate:
    """A storage whose writes of one file wait until the test lets them through."""

    def __init__(self, path: str) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()
        self.storage = FaultyStorage.memory("gate", [Rule("slow", path=path, nth=1)], sleep=self._hold)

    def _hold(self, seconds: float) -> None:
        self.reached.set()
        assert self.opened.wait(60)


def saver(url: str, **options: Any) -> Saver:
    plain = {"generation": 1, "may_commit": lambda: True, "alive": lambda phase: None}
    return Saver(Checkpoints(url), **{**plain, **options})


def save(saver: Saver, step: int, weights: torch.Tensor, *, at_once: bool = False) -> None:
    saver.save(step=step, tensors={"model": {"w": weights}}, state={"step": step}, score=None, at_once=at_once)


def test_checkpoint_in_flight_has_the_values_of_its_step(tmp_path: Path) -> None:
    gate = Gate("*/model.safetensors")
    weights = torch.full((4,), 1.0)
    with saver(gate.storage.url("c")) as own:
        save(own, 1, weights)
        assert gate.reached.wait(60)
        assert own.is_busy
        weights.fill_(2.0)
        own.check()
        gate.opened.set()
        own.settle()
        save(own, 2, weights)
    loaded = [each.tensors["model"]["w"] for each in Checkpoints(gate.storage.url("c")).readable(at_most=9)]
    assert [tensor.tolist() for tensor in loaded] == [[2.0] * 4, [1.0] * 4]


def test_second_checkpoint_waits_for_the_first(tmp_path: Path) -> None:
    gate = Gate("*/state.json")
    phases: list[str] = []

    def alive(phase: str) -> None:
        phases.append(phase)
        gate.opened.set()

    with saver(gate.storage.url("c"), alive=alive) as own:
        save(own, 1, torch.ones(3))
        assert gate.reached.wait(60)
        save(own, 2, torch.ones(3))
        own.settle()
    assert [each.step for each in Checkpoints(gate.storage.url("c")).found()] == [1, 2]
    assert phases
    assert all(phase.startswith("checkpoint ") and int(phase.split()[1]) >= 12 for phase in phases)


def test_checkpoint_at_once_is_there_when_it_returns(tmp_path: Path) -> None:
    with saver(str(tmp_path)) as own:
        save(own, 1, torch.ones(3), at_once=True)
        assert [each.step for each in Checkpoints(str(tmp_path)).found()] == [1]


def test_copy_without_room_is_not_made(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with saver(str(tmp_path), copy_bytes=2**60) as own:
        save(own, 1, torch.ones(3))
        assert not own.is_busy
        assert [each.step for each in Checkpoints(str(tmp_path)).found()] == [1]
    assert "has no room in" in caplog.text


@pytest.mark.parametrize("ask", [Saver.check, Saver.settle, lambda own: save(own, 2, torch.ones(3))])
def test_failed_write_is_raised_at_the_next_step(ask: Callable[[Saver], None]) -> None:
    gate = Gate("*/state.json")
    with saver(gate.storage.url("c")) as own:
        save(own, 1, torch.ones(3))
        assert gate.reached.wait(60)
        gate.storage.rules = [Rule("denied", path="*/MANIFEST.json")]
        gate.opened.set()
        own._flying.exception()  # it has ended
        with pytest.raises(StoreError):
            ask(own)
        own.check()  # once told, it is over
    assert Checkpoints(gate.storage.url("c")).newest() is None


def test_write_of_a_superseded_generation_is_raised(tmp_path: Path) -> None:
    with saver(str(tmp_path), may_commit=lambda: False) as own:
        save(own, 1, torch.ones(3))
        with pytest.raises(CheckpointError, match="a newer generation than 1"):
            own.settle()


def test_error_of_the_training_is_not_hidden_by_that_of_a_write(caplog: pytest.LogCaptureFixture) -> None:
    storage = FaultyStorage.memory("full", [Rule("full", path="*/state.json")])

    def fail() -> None:
        with saver(storage.url("c")) as own:
            save(own, 1, torch.ones(3))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert "the checkpoint in flight was not written" in caplog.text


# The loop.

CONFIG = TrainConfig(
    model=Decoder(layers=1, width=16, heads=2, vocab_size=40, context=16),
    optimizer=AdamW(lr=0.01),
    schedule=Constant(),
    tokens=8 * 4 * 16,
    batch=4,
    seed=5,
    checkpoint_steps=2,
)


class Rows:
    """Numbered random sequences; whoever reads the row `at` is told."""

    digest = "rows"

    def __init__(self) -> None:
        self._rows = torch.randint(0, 40, (30, 17), generator=torch.Generator().manual_seed(0)).numpy()

    def __len__(self) -> int:
        return len(self._rows)

    def batch(self, indices: Any) -> Any:
        return self._rows[indices][:, :-1].copy(), self._rows[indices][:, 1:].copy()


@dataclass(frozen=True)
class Member(LaunchedMember):
    """A lone rank that calls `at` with its phase and step at every beat, and keeps its metrics."""

    at: Callable[["Member", str, int], None] = lambda *_: None
    metrics: list[dict[str, float]] = field(default_factory=list)

    def beat(self, phase: str, step: int) -> None:
        self.at(self, phase, step)

    def metric(self, **values: float) -> None:
        self.metrics.append(values)


def train(
    folder: Path,
    checkpoints: str,
    config: TrainConfig = CONFIG,
    at: Callable[[Member, str, int], None] = lambda *_: None,
    **options: Any,
) -> dict[str, bytes]:
    torch.set_num_threads(1)
    train_source(
        options.pop("member", None) or Member(at=at),
        config=config,
        source=Rows(),
        checkpoints=checkpoints,
        output=fs.FolderOutput(str(folder / "output")),
        **options,
    )
    return {path.name: path.read_bytes() for path in sorted((folder / "output").iterdir())}


def test_training_goes_on_while_a_checkpoint_is_written(tmp_path: Path) -> None:
    gate = Gate("*/model.safetensors")

    def at(member: Member, phase: str, step: int) -> None:
        if (phase, step) == ("train", 3):
            assert gate.reached.wait(60)
            gate.opened.set()

    held = train(tmp_path / "held", gate.storage.url("c"), at=at)
    assert held == train(tmp_path / "plain", str(tmp_path / "plain" / "checkpoints"))
    (early,) = [each for each in Checkpoints(gate.storage.url("c"), keep=Keep(last=9)).readable(at_most=6)][:1]
    assert early.step == 6


@pytest.mark.parametrize("fault", ["full", "denied"])
def test_training_whose_checkpoint_fails_ends_and_the_next_run_goes_on_to_the_same_end(
    tmp_path: Path, fault: str
) -> None:
    storage = FaultyStorage.memory("disk", [Rule(fault, path="*/step-00000004*")])
    with pytest.raises(StoreError) as caught:
        train(tmp_path / "run", storage.url("c"))
    assert "step-00000004" in caught.value.where
    newest = Checkpoints(storage.url("c")).newest()
    assert newest is not None
    assert newest.step == 2
    storage.rules = []
    resumed = train(tmp_path / "run", storage.url("c"))
    assert resumed == train(tmp_path / "plain", str(tmp_path / "plain" / "checkpoints"))


def test_training_asked_to_stop_while_a_checkpoint_is_written_keeps_both(tmp_path: Path) -> None:
    gate = Gate("*/model.safetensors")

    def at(member: Member, phase: str, step: int) -> None:
        if (phase, step) == ("train", 3):
            assert gate.reached.wait(60)
            member.stop.set()
        if (phase, step) == ("checkpoint", 4):
            gate.opened.set()

    with pytest.raises(FileNotFoundError):
        train(tmp_path / "run", gate.storage.url("c"), at=at)
    assert [each.step for each in Checkpoints(gate.storage.url("c")).found()] == [2, 4]
    resumed = train(tmp_path / "run", gate.storage.url("c"))
    assert resumed == train(tmp_path / "plain", str(tmp_path / "plain" / "checkpoints"))


def test_run_writes_a_checkpoint_where_one_is_to_be_kept(tmp_path: Path) -> None:
    config = CONFIG.model_copy(update={"keep": Keep(every=3, at=(1,)), "checkpoint_steps": 100})
    train(tmp_path, str(tmp_path / "c"), config)
    assert [each.step for each in Checkpoints(str(tmp_path / "c")).found()] == [1, 3, 6, 8]


def test_run_keeps_the_checkpoint_with_the_lowest_loss_on_held_out_sequences(tmp_path: Path) -> None:
    keep = {"keep": Keep(best=True, last=1), "checkpoint_steps": 100, "validate_every": 1, "validate_sequences": 4}
    config = CONFIG.model_copy(update={**keep, "optimizer": AdamW(lr=0.3)})
    member = Member()
    train(tmp_path, str(tmp_path / "c"), config, member=member, watched=Watched(held_out=HeldOut(Rows(), None)))
    losses = {values["step"]: values["val_loss"] for values in member.metrics if "val_loss" in values}
    assert len(losses) == 8
    best = min(losses, key=lambda step: losses[step])
    assert {each.step for each in Checkpoints(str(tmp_path / "c")).found()} == {best, 8}
