"""How many sequences each step takes, as a pure function of the step: one batch size, or a ramp up to it.

Invariant: where a step begins in the stream of sequences follows from its number alone, so a resumed run needs no
state of its own. No torch here.
"""

import bisect
from dataclasses import dataclass
from typing import NamedTuple

from pydantic import Field

from marin.base.config import Config
from marin.base.errors import ConfigurationError


class BatchRamp(Config):
    """The batch grows from `start` by `increment` up to the full batch, in equal stretches of `tokens` altogether.

    As in GPT-3 (arXiv:2005.14165, appendix B): small batches learn more per token while the loss still falls fast.
    """

    start: int = Field(ge=1)
    """Sequences of the first steps, over all ranks."""
    increment: int = Field(ge=1)
    """Sequences by which the batch grows each time."""
    tokens: int = Field(ge=1)
    """Tokens until the batch is full; each stretch is rounded up to whole steps."""


class Stretch(NamedTuple):
    """Steps of one batch size."""

    first_step: int
    first_sequence: int
    batch: int


@dataclass(frozen=True)
class StepPlan:
    """The steps of a run; at least one stretch, the first begins at step 0."""

    stretches: tuple[Stretch, ...]
    num_steps: int

    def batch(self, step: int) -> int:
        """Return the sequences of one step, over all ranks."""
        return self._stretch(step).batch

    def sequences(self, step: int) -> int:
        """Return how many sequences come before a step; before `num_steps`: those of the whole run."""
        stretch = self._stretch(step)
        return stretch.first_sequence + (step - stretch.first_step) * stretch.batch

    def _stretch(self, step: int) -> Stretch:
        return self.stretches[bisect.bisect_right(self.stretches, step, key=lambda each: each.first_step) - 1]


def plan_steps(*, tokens: int, context: int, batch: int, ramp: BatchRamp | None) -> StepPlan:
    """Return the steps that take at least `tokens`, in sequences of `context`."""
    stretches: list[Stretch] = []
    step = sequence = 0
    for size, length in [*_growth(batch, ramp), (batch, tokens)]:
        left = tokens - sequence * context
        if left <= 0:
            break
        stretches.append(Stretch(step, sequence, size))
        num_steps = -(-min(length, left) // (size * context))
        step, sequence = step + num_steps, sequence + num_steps * size
    return StepPlan(tuple(stretches), step)


def _growth(batch: int, ramp: BatchRamp | None) -> list[tuple[int, int]]:
    """Return the sizes below the full batch and how many tokens each takes."""
    if ramp is None:
        return []
    sizes = range(ramp.start, batch, ramp.increment)
    return [(size, -(-ramp.tokens // len(sizes))) for size in sizes]


def check_ramp(ramp: BatchRamp | None, batch: int, *, where: str) -> None:
    """Raise ConfigurationError unless the ramp ends at the batch."""
    if ramp is None or (ramp.start < batch and (batch - ramp.start) % ramp.increment == 0):
        return
    raise ConfigurationError(
        f"a batch that grows from {ramp.start} by {ramp.increment} never is the full batch of {batch}",
        where=f"{where}.ramp",
        hint="choose `start` below `batch`, and an `increment` that divides their difference",
    )
