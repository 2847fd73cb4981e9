"""What a finished run leaves: weights and configuration in Hugging Face's form, and a record without times.

Invariant: equal runs write equal bytes, however often they were killed and however often they logged.
"""

from typing import Any

from marin.base.json import Json, pretty
from marin.graph.files import Output
from marin.model.hub import to_hugging_face_config
from marin.model.weights import write_tensors
from marin.train.state import TrainingState

SCHEMA = 1
_POINTS = 200


def write_result(state: TrainingState, output: Output, *, eos_id: int | None) -> dict[str, Json]:
    """Write `model.safetensors`, `config.json` and `training.json`; return the record's summary."""
    with output.open("model.safetensors") as file:
        write_tensors(file, dict(state.model.named_parameters()))
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
    output.write("training.json", pretty(record).encode())
    return summary


def summarise(state: TrainingState) -> dict[str, Json]:
    """Return the numbers that identify a run on a screen; `loss` is the mean of the last tenth of the steps."""
    tail = state.losses[-max(1, state.num_steps // 10) :].double()
    return {
        "steps": state.step,
        "tokens": state.tokens,
        "parameters": sum(parameter.numel() for parameter in state.model.parameters()),
        "loss": float(tail.mean()),
    }


def curve(state: TrainingState) -> list[Json]:
    """Return at most 200 points `{step, loss, grad_norm}`, each the mean over an equal window that ends at `step`."""
    num_steps = state.num_steps
    num_points = min(num_steps, _POINTS)
    points: list[Any] = []
    losses, norms = state.losses.double().cpu(), state.norms.double().cpu()
    for point in range(num_points):
        start, stop = num_steps * point // num_points, num_steps * (point + 1) // num_points
        window = {"loss": losses[start:stop], "grad_norm": norms[start:stop]}
        points.append({"step": stop, **{name: float(values.mean()) for name, values in window.items()}})
    return points
