"""A training at one of its steps, as a checkpoint artifact: as it was kept, or as it was trained again up to there.

Invariant: what is written is a function of the training and the step alone: a kept state, and one that was trained
again on as many ranks from the nearest one before it, are equal to the bit. The training's own folder is only read.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from marin.base.errors import CheckpointError, ConfigurationError
from marin.base.json import Json, pretty
from marin.graph.artifact import Checkpoint
from marin.graph.files import Output
from marin.model.weights import write_tensors
from marin.train.checkpoint import Checkpoints, Loaded
from marin.train.config import TrainConfig
from marin.train.record import full_record, summarise
from marin.train.start import RAW, STATE


@dataclass(frozen=True)
class Snapshot:
    """A training at one step, read from a checkpoint; a `marin.train.record.Trained`."""

    config: TrainConfig
    loaded: Loaded
    optimizer: dict[str, Tensor] = field(init=False)
    losses: Tensor = field(init=False)
    norms: Tensor = field(init=False)

    def __post_init__(self) -> None:
        rest = dict(self.loaded.tensors["optimizer"])
        for name, curve in (("losses", "curve.loss"), ("norms", "curve.grad_norm")):
            object.__setattr__(self, name, rest.pop(curve)[: self.step])
        object.__setattr__(self, "optimizer", rest)

    @property
    def step(self) -> int:
        """Steps done."""
        return self.loaded.step

    @property
    def tokens(self) -> int:
        """Target tokens so far."""
        return int(self.loaded.state["tokens"])

    @property
    def events(self) -> list[Mapping[str, Json]]:
        """Steps that were skipped or rolled back so far."""
        return list(self.loaded.state["events"])


def check_step(training: Checkpoint, step: int) -> None:
    """Raise ConfigurationError if a finished training has no such step."""
    steps = int(training.meta["steps"])
    if step > steps:
        raise ConfigurationError(
            f"there is no step {step}: the training has {steps} steps",
            where="Train.at_step",
            hint=f"ask for a step up to {steps}",
        )


def find(training: str, own: str, step: int) -> Loaded | None:
    """Return the state at a step from the folder of the training's checkpoints or one's own; None if in neither."""
    for folder in (training, own):
        newest = next(Checkpoints(folder).readable(at_most=step), None)
        if newest is not None and newest.step == step:
            return newest
    return None


def found_after(own: str, step: int) -> Loaded:
    """Return the state at which a training up to a step has ended; raises CheckpointError if it is damaged."""
    newest = Checkpoints(own).newest()
    if newest is None or newest.step != step:
        raise CheckpointError(
            f"the checkpoint of step {step} that was just written cannot be read",
            where=own,
            hint="look at the disk, and run the same command again",
        )
    return newest


def begin(training: str, own: str, step: int) -> int:
    """Let one's own folder hold the newest state before a step that the training kept; return its step, 0 for none."""
    mine, kept = Checkpoints(own), Checkpoints(training)
    newest, there = (next(each.readable(at_most=step), None) for each in (mine, kept))
    if there is not None and (newest is None or newest.step < there.step):
        mine.take_over(kept, there.name)
        newest = there
    return newest.step if newest else 0


def write(loaded: Loaded, training: Checkpoint, config: TrainConfig, output: Output) -> dict[str, Json]:
    """Write a step's weights and record beside the model's and tokenizer's files; return the record's summary."""
    snapshot = Snapshot(config, loaded)
    weights = loaded.tensors["model"]
    averages = loaded.tensors.get("ema")
    with output.open("model.safetensors") as file:
        write_tensors(file, averages or weights)
    for copied in training.contents.files:
        if copied.path in ("config.json", "tokenizer.json"):
            output.write(copied.path, training.contents.reader.read(copied))
    summary = summarise(snapshot, parameters=sum(weight.numel() for weight in weights.values()))
    saved: Mapping[str, Any] = loaded.state
    record = full_record(snapshot, summary, saved)
    if config.keep_state:
        raw = {f"{RAW}{name}": tensor for name, tensor in weights.items()} if averages else {}
        with output.open(STATE) as file:
            write_tensors(file, {**snapshot.optimizer, **raw})
        record["state"] = {"updates": saved["updates"], "position": saved["position"]}
    output.write("training.json", pretty(record).encode())
    return summary
