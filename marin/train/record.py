"""What a finished run leaves: weights and configuration in Hugging Face's form, and a record without times.

Invariant: equal runs write equal bytes, however often they were killed and however often they logged.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from marin.base.json import Json, pretty
from marin.graph.files import Output
from marin.model.hub import to_hugging_face_config
from marin.model.weights import write_tensors
from marin.train.nonfinite import StopRun
from marin.train.start import RAW, STATE
from marin.train.state import TrainingState

SCHEMA = 1
_POINTS = 200


def write_result(
    state: TrainingState, tensors: Mapping[str, Mapping[str, Tensor]], output: Output, *, eos_id: int | None
) -> dict[str, Json]:
    """Write `model.safetensors`, `config.json` and `training.json`; return the record's summary.

    `tensors`: the state's, whole (`TrainingState.hand_over`).
    The weights are the average where one was kept. With `keep_state` also what a branch of this run carries on.
    """
    weights = tensors["model"]
    with output.open("model.safetensors") as file:
        write_tensors(file, tensors.get("ema", weights))
    output.write("config.json", pretty(to_hugging_face_config(state.config.model, eos_id=eos_id)).encode())
    summary = summarise(state)
    saved = state.record()
    record = {
        "schema": SCHEMA,
        **summary,
        "audit": saved["audit"],
        "order": saved["order"],
        "config": saved["config"],
        "curve": curve(state),
    }
    if state.events:
        record["events"] = list(state.events)
    if state.config.keep_state:
        raw = {f"{RAW}{name}": tensor for name, tensor in weights.items()} if state.average else {}
        with output.open(STATE) as file:
            optimizer = {name: t for name, t in tensors["optimizer"].items() if not name.startswith("curve.")}
            write_tensors(file, {**optimizer, **raw})
        record["state"] = {"updates": state.updates, "position": saved["position"]}
    output.write("training.json", pretty(record).encode())
    return summary


def summarise(state: TrainingState) -> dict[str, Json]:
    """Return the numbers that identify a run on a screen; `loss` is the mean of the last tenth of the steps."""
    tail = state.losses[-max(1, state.num_steps // 10) :].double()
    policy = state.config.nonfinite
    counted: dict[str, Json] = {} if isinstance(policy, StopRun) else {"nonfinite_steps": len(state.events)}
    return {
        "steps": state.step,
        "tokens": state.tokens,
        "parameters": sum(shape.numel() for shape in state.shapes.values()),
        "loss": _mean(tail),
        **counted,
    }


def curve(state: TrainingState) -> list[Json]:
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
