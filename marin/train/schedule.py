"""Learning rate as a pure function of the step, so that a resumed run needs no state of its own."""

import math

from marin.train.config import Constant, Cosine, WarmupStableDecay


def factor(schedule: Constant | Cosine | WarmupStableDecay, step: int, num_steps: int) -> float:
    """Return the fraction of the learning rate for `step` of `0..num_steps-1`.

    Warm-up rises to 1 at step `warmup_steps - 1`; a decay reaches `final` at the last step.
    """
    if step < schedule.warmup_steps:
        return (step + 1) / schedule.warmup_steps
    if isinstance(schedule, Constant):
        return 1.0
    if isinstance(schedule, Cosine):
        start = schedule.warmup_steps
        done = _fraction(step, start, num_steps)
        return schedule.final + (1 - schedule.final) * 0.5 * (1 + math.cos(math.pi * done))
    start = max(schedule.warmup_steps, num_steps - round(schedule.decay * num_steps))
    return 1 - (1 - schedule.final) * _fraction(step, start, num_steps)


def _fraction(step: int, start: int, num_steps: int) -> float:
    """Return how much of `start..num_steps-1` is done: 0 before it, 1 at the last step."""
    return max(0, step - start + 1) / max(1, num_steps - start)
