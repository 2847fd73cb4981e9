"""What a step costs whose loss or gradient is no finite number: the run, the step, or the way back to a checkpoint.

Invariant: a decision is a function of what happened at which step, and what happened is recorded, so that a run that
was killed anywhere decides alike when it continues. No torch here.
"""

from enum import Enum
from typing import Literal

from pydantic import Field

from marin.base.config import Config


class StopRun(Config):
    """The run stops with an error that names step and samples; nothing of that step is saved."""

    kind: Literal["stop"] = "stop"


class SkipStep(Config):
    """The step's samples are passed over without an update, and counted. The host waits for the device each step."""

    kind: Literal["skip"] = "skip"
    most: int = Field(default=10, ge=1)
    """Steps of a run that may be skipped before it stops."""


class RollBack(Config):
    """Weights and optimiser return to the last checkpoint; the samples since then are passed over, and recorded.

    Checkpoints are then written every so many steps and at no other time, so that the result does not depend on the
    clock: a run that is asked to stop goes on from the last of them. The host waits for the device each step.
    """

    kind: Literal["rollback"] = "rollback"
    every: int = Field(default=100, ge=1)
    """Steps between the checkpoints to which a run can return."""
    most: int = Field(default=3, ge=1)
    """Times that a run may return before it stops."""


NonFinite = StopRun | SkipStep | RollBack


class Verdict(Enum):
    """What is done about a step."""

    UPDATE = "update"
    SKIP = "skip"
    ROLL_BACK = "rollback"
    STOP = "stop"


def verdict(policy: NonFinite, *, finite: bool, so_far: int) -> Verdict:
    """Return what to do about a step, given how many were skipped or rolled back already."""
    if finite:
        return Verdict.UPDATE
    if isinstance(policy, StopRun) or so_far >= policy.most:
        return Verdict.STOP
    return Verdict.SKIP if isinstance(policy, SkipStep) else Verdict.ROLL_BACK
