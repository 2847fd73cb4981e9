"""When a run ends before its last step: once looks no longer improve, or a loss is low enough. No torch here.

Invariant: whether a run stops is a function of the losses that were seen and of nothing else; they are saved with every
checkpoint, so a run that was killed stops where it would have.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

from pydantic import Field, model_validator

from marin.base.config import Config
from marin.base.errors import ConfigurationError


class EarlyStop(Config):
    """Ends a run early; what is learnt until then, with its schedule, is that of the whole run.

    Needs `patience` or `target`, or both: the first that applies ends the run.
    """

    every: int = Field(ge=1)
    """Steps between looks."""
    metric: Literal["held_out", "training"] = "held_out"
    """The loss on `Train.stop_data`, or the mean over the steps since the look before."""
    patience: int | None = Field(default=None, ge=1)
    """Looks without an improvement that are one too many."""
    min_delta: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """By how much a loss must be lower than the best to improve on it, in nats a token."""
    target: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Loss at which there is nothing left to learn, in nats a token."""
    sequences: int = Field(default=256, ge=1)
    """Held-out sequences of a look: the first ones."""

    @model_validator(mode="after")
    def _check_ends(self) -> "EarlyStop":
        if self.patience is None and self.target is None:
            raise ConfigurationError(
                "an EarlyStop without `patience` and `target` never stops",
                where="EarlyStop.patience",
                hint="give patience=... (looks) or target=... (nats a token)",
            )
        return self


class Look(NamedTuple):
    """The loss that was seen after a step; None where nothing finite was."""

    step: int
    loss: float | None


def reason_to_stop(stop: EarlyStop, looks: Sequence[Look]) -> str | None:
    """Return why a run ends after the last of these looks, in words; None while it goes on."""
    best, without = None, 0
    for look in looks:
        if look.loss is not None and (best is None or look.loss < best - stop.min_delta):
            best, without = look.loss, 0
        else:
            without += 1
    if not looks:
        return None
    last = looks[-1].loss
    if stop.target is not None and last is not None and last <= stop.target:
        return f"the loss {last:.4g} reached the target {stop.target:g}"
    if stop.patience is not None and without >= stop.patience:
        looks_said = "1 look" if without == 1 else f"{without} looks"
        return f"{looks_said} did not improve on {'anything finite' if best is None else format(best, '.4g')}"
    return None


def check_stop(stop: EarlyStop | None, *, has_data: bool, where: str) -> None:
    """Raise ConfigurationError unless held-out sequences are given exactly where they decide."""
    needs = stop is not None and stop.metric == "held_out"
    if needs and not has_data:
        raise ConfigurationError(
            "there are no held-out sequences whose loss could end the run",
            where=f"{where}.stop_data",
            hint="give `stop_data`, or stop on the training loss: EarlyStop(metric='training', ...)",
        )
    if has_data and not needs:
        raise ConfigurationError(
            "these held-out sequences decide nothing",
            where=f"{where}.stop_data",
            hint="give stop=EarlyStop(...), or look at them without deciding: `validation`",
        )
