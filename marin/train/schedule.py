"""Learning rate as a pure function of step and sequences, so that a resumed run needs no state of its own."""

import math
from collections.abc import Callable

from marin.train.config import Constant, Cosine, WarmupStableDecay


def one_each(step: int) -> int:
    """Return the sequences before a step where all steps are alike: any unit will do."""
    return step


def factor(
    schedule: Constant | Cosine | WarmupStableDecay,
    step: int,
    num_steps: int,
    sequences: Callable[[int], int] = one_each,
) -> float:
    """Return the fraction of the learning rate for `step` of `0..num_steps-1`.

    Warm-up rises to 1 at step `warmup_steps - 1`; a decay reaches `final` at the last step. Where a decay begins is
    counted in steps; in between it follows the sequences seen (`StepPlan.sequences`), as batches may grow.
    """
    if step < schedule.warmup_steps:
        return (step + 1) / schedule.warmup_steps
    if isinstance(schedule, Constant):
        return 1.0
    if isinstance(schedule, Cosine):
        done = _fraction(step, schedule.warmup_steps, num_steps, sequences)
        return schedule.final + (1 - schedule.final) * 0.5 * (1 + math.cos(math.pi * done))
    start = max(schedule.warmup_steps, num_steps - round(schedule.decay * num_steps))
    return 1 - (1 - schedule.final) * _fraction(step, start, num_steps, sequences)


def _fraction(step: int, start: int, num_steps: int, sequences: Callable[[int], int]) -> float:
    """Return how much of `start..num_steps-1` is done: 0 before it, 1 at the last step.

    A quotient of integers is rounded once, so the unit of `sequences` cannot change a bit of it.
    """
    before = sequences(start)
    return max(0, sequences(step + 1) - before) / max(1, sequences(num_steps) - before)
