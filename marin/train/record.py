"""What a finished run leaves: weights and configuration in Hugging Face's form, and a record without times.

Invariant: equal runs write equal bytes, however often they were killed and however often they logged.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from marin.base.json import Json, pretty
from marin.graph.files import Output
from marin.model.hub import from_hugging_face_config, to_hugging_face_config
from marin.model.weights import write_tensors
from marin.train.adapters import peft_config, peft_tensors
from marin.train.config import TrainConfig
from marin.train.nonfinite import StopRun
from marin.train.start import RAW, STATE, end_ids
from marin.train.state import TrainingState

SCHEMA = 1
ADAPTER = "adapter"
"""Folder of the adapters in peft's form; transformers would add what lies beside the weights to them once more."""
_POINTS = 200


class Trained(Protocol):
    """What is told of a run: `TrainingState` at its end, or a `marin.train.snapshot` of it on the way."""

    @property
    def config(self) -> TrainConfig: ...

    @property
    def step(self) -> int: ...

    @property
    def tokens(self) -> int: ...

    @property
    def losses(self) -> Tensor: ...

    @property
    def norms(self) -> Tensor: ...

    @property
    def events(self) -> Sequence[Mapping[str, Json]]: ...


def write_result(
    state: TrainingState, tensors: Mapping[str, Mapping[str, Tensor]], output: Output, *, eos_id: int | None
) -> dict[str, Json]:
    """Write `model.safetensors`, `config.json` and `training.json`; return the record's summary.

    `tensors`: the state's, whole (`TrainingState.hand_over`).
    The weights are the average where one was kept. With `keep_state` also what a branch of this run carries on.
    """
    weights = tensors["model"]
    learnt = tensors.get("ema", weights)
    with output.open("model.safetensors") as file:
        write_tensors(file, state.adapters.merged(learnt) if state.adapters else learnt)
    if state.config.lora is not None:
        with output.open(f"{ADAPTER}/adapter_model.safetensors") as file:
            write_tensors(file, peft_tensors(learnt))
        described = peft_config(state.config.lora, learnt, is_gpt2=state.config.model.family == "gpt2")
        output.write(f"{ADAPTER}/adapter_config.json", pretty(described).encode())
    output.write("config.json", pretty(hugging_face_config(state, eos_id=eos_id)).encode())
    trained = sum(shape.numel() for shape in state.shapes.values())
    if state.adapters:
        parameters = sum(parameter.numel() for parameter in state.model.parameters())
        summary = summarise(state, parameters=parameters - trained, trained_parameters=trained)
    else:
        summary = summarise(state, parameters=trained)
    saved = state.record()
    record = full_record(state, summary, saved)
    if state.config.stop is not None:
        looks: list[Json] = [{"step": look.step, "loss": look.loss} for look in state.looks]
        record["stop"] = {"reason": state.stop_reason, "looks": looks}
    if state.config.keep_state:
        raw = {f"{RAW}{name}": tensor for name, tensor in weights.items()} if state.average else {}
        with output.open(STATE) as file:
            optimizer = {name: t for name, t in tensors["optimizer"].items() if not name.startswith("curve.")}
            write_tensors(file, {**optimizer, **raw})
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


def hugging_face_config(state: TrainingState, *, eos_id: int | None) -> dict[str, Json]:
    """Return the result's `config.json`.

    With `keep_config` it has the base's context, its `bos_token_id`, and its ends of text after that of the data.
    """
    model, base = state.config.model, state.base_config
    if not state.config.keep_config:
        return to_hugging_face_config(model, eos_id=eos_id)
    kept = model.model_copy(update={"context": from_hugging_face_config(base).context or model.context})
    ends = list(dict.fromkeys([*end_ids(eos_id), *end_ids(base.get("eos_token_id"))]))
    special: dict[str, Json] = {
        "bos_token_id": base.get("bos_token_id"),
        "eos_token_id": list[Json](ends) if len(ends) > 1 else ends[0] if ends else None,
    }
    return {**to_hugging_face_config(kept), **special}


def summarise(state: Trained, *, parameters: int, trained_parameters: int | None = None) -> dict[str, Json]:
    """Return the numbers that identify a run on a screen; `loss` is the mean of the last tenth of the steps."""
    tail = state.losses[: state.step][-max(1, state.step // 10) :].double()
    policy = state.config.nonfinite
    counted: dict[str, Json] = {} if isinstance(policy, StopRun) else {"nonfinite_steps": len(state.events)}
    return {
        "steps": state.step,
        "tokens": state.tokens,
        "parameters": parameters,
        **({} if trained_parameters is None else {"trained_parameters": trained_parameters}),
        "loss": _mean(tail),
        **counted,
    }


def curve(state: Trained) -> list[Json]:
    """Return at most 200 points `{step, loss, grad_norm}`, each the mean over an equal window that ends at `step`.

    Skipped steps do not count; a window without any other has None.
    """
    num_steps = state.step
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
