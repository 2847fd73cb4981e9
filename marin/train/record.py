"""What a finished run leaves: weights and configuration in Hugging Face's form, and a record without times.

Invariant: equal runs write equal bytes, however often they were killed and however often they logged.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from marin.base.json import Json, pretty
from marin.graph.files import Output
from marin.model.hub import to_hugging_face_config
from marin.model.weights import write_tensors
from marin.train.config import TrainConfig
from marin.train.nonfinite import StopRun
from marin.train.start import RAW, STATE
from marin.train.state import TrainingState

SCHEMA = 1
_POINTS = 200


class Trained(Protocol):
    """What is told of a run: `TrainingState` at its end, or a `marin.train.snapshot` of it on the way."""

    @property
    def config(self) -> TrainConfig: ...

    @property
    def step(self) -> int: ...

    @property
    def num_steps(self) -> int:
        """Steps that `losses` and `norms` are of."""

    @property
    def tokens(self) -> int: ...

    @property
    def losses(self) -> Tensor: ...

    @property
    def norms(self) -> Tensor: ...

    @property
    def events(self) -> Sequence[Mapping[str, Json]]: ...


def write_result(state: TrainingState, output: Output, *, eos_id: int | None) -> dict[str, Json]:
    """Write `model.safetensors`, `config.json` and `training.json`; return the record's summary.

    The weights are the average where one was kept. With `keep_state` also what a branch of this run carries on.
    """
    weights = dict(state.model.named_parameters())
    with output.open("model.safetensors") as file:
        write_tensors(file, state.average.state() if state.average else weights)
    output.write("config.json", pretty(to_hugging_face_config(state.config.model, eos_id=eos_id)).encode())
    summary = summarise(state, parameters=sum(weight.numel() for weight in weights.values()))
    saved = state.record()
    record = full_record(state, summary, saved)
    if state.config.keep_state:
        raw = {f"{RAW}{name}": tensor for name, tensor in weights.items()} if state.average else {}
        with output.open(STATE) as file:
            write_tensors(file, {**state.update.state(), **raw})
        record["state"] = {"updates": state.updates, "position": saved["position"]}
    output.write("training.json", pretty(record).encode())
    return summary


def full_record(state: Trained, summary: Mapping[str, Json], saved: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `training.json` says of a run; `saved` is what a checkpoint of it records."""
    record: dict[str, Any] = {
        "schema": SCHEMA,
        **summary,
        "audit": saved["audit"],
        "order": saved["order"],
        "config": saved["config"],
        "curve": curve(state),
    }
    return {**record, "events": [dict(event) for event in state.events]} if state.events else record


def summarise(state: Trained, *, parameters: int) -> dict[str, Json]:
    """Return the numbers that identify a run on a screen; `loss` is the mean of the last tenth of the steps."""
    tail = state.losses[-max(1, state.num_steps // 10) :].double()
    policy = state.config.nonfinite
    counted: dict[str, Json] = {} if isinstance(policy, StopRun) else {"nonfinite_steps": len(state.events)}
    return {
        "steps": state.step,
        "tokens": state.tokens,
        "parameters": parameters,
        "loss": _mean(tail),
        **counted,
    }


def curve(state: Trained) -> list[Json]:
    """Return at most 200 points `{step, loss, grad_norm}`, each the mean over an equal window that ends at `step`.

    Skipped steps do not count; a window without any other has None.
    """
    num_steps = state.num_steps
    num_points = min(num_steps, _POINTS)
    points: list[Any] = []
    losses, norms = state.losses.double().cpu(), state.norms.double().cpu()
    for point in range(num_points):
        start, stop = num_steps * point // num_points, num_steps * (point + 1) // num_points
        window = {"loss": losses[start:stop], "grad_norm": norms[start:stop]}
        points.append({"step": stop, **{name: _mean(values) for name, values in window.items()}})
    return points


def _mean(values: Tensor) -> float | None:
    finite = torch.isfinite(values)
    if not bool(finite.all()):
        values = values[finite]
    return float(values.mean()) if len(values) else None
