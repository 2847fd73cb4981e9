"""A gang: ranks that start and die together, re-formed after a loss within its budget.

The policy only, as a loop over a `Formation` (one forming of the gang on some backend): who is to blame, who is
suspected of hanging, whether to form again. It knows no Ray and no torch.
"""

import statistics
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

from marin.base.errors import StepError
from marin.base.json import Json
from marin.run.failure import Failure, lost
from marin.run.fence import Fence, verified_checkpoints
from marin.run.order import GangOrder
from marin.run.rank import RankEnd
from marin.run.retry import Budget, Cause

SUSPECT_SECONDS = 60.0
SUSPECT_STEPS = 20
FIRST_STEP_SECONDS = 600.0
GRACE_SECONDS = 3.0
HUNG_HINT = (
    "the stacks of all ranks are in rank-N.log of the attempt; the same command continues at the last checkpoint"
)


@dataclass(frozen=True, slots=True)
class News:
    """What a poll of a formation brought: ranks that ended, and the last beat of each rank that answered."""

    ends: tuple[RankEnd, ...] = ()
    beats: tuple[tuple[int, str, int], ...] = ()
    """(rank, phase, step)."""
    alive: tuple[int, ...] = ()
    """Ranks that answered since the last poll."""
    stopping: bool = False
    """Some rank was told to stop, by a signal."""


class Formation(Protocol):
    """One forming of a gang, with every rank running."""

    def poll(self, timeout: float) -> News:
        """Wait at most `timeout` seconds for news."""

    def stop(self) -> None:
        """Ask every rank to checkpoint and stop."""

    def dump_stacks(self) -> None:
        """Have every rank write the stacks of its threads to its log."""


Form = Callable[[int], AbstractContextManager[Formation]]


@dataclass
class Movement:
    """Sees which ranks move; one that stands still for max(60 s, 20 x median step) is suspected.

    A rank is watched from its first beat on; until its step has moved once, 600 s are allowed (compilation).
    """

    floor: float = SUSPECT_SECONDS
    first: float = FIRST_STEP_SECONDS
    _last: dict[int, tuple[str, int, float]] = field(default_factory=dict)
    _durations: deque[float] = field(default_factory=lambda: deque(maxlen=200))

    def see(self, rank: int, phase: str, step: int, now: float) -> None:
        """Take in a beat."""
        before = self._last.get(rank)
        if before is None or before[:2] != (phase, step):
            if before is not None and step > before[1]:
                self._durations.append((now - before[2]) / (step - before[1]))
            self._last[rank] = (phase, step, now)

    def forget(self, rank: int) -> None:
        """Stop watching a rank that has ended."""
        self._last.pop(rank, None)

    def suspects(self, now: float) -> list[int]:
        """Return the ranks that stand still for too long."""
        median = statistics.median(self._durations) if self._durations else None
        limit = self.first if median is None else max(self.floor, SUSPECT_STEPS * median)
        return sorted(rank for rank, (_, _, since) in self._last.items() if now - since > limit)


def run_gang(
    order: GangOrder,
    form: Form,
    *,
    emit: Callable[..., None],
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> list[Json]:
    """Return the ranks' values by rank; form the gang anew after each loss that the budget forgives.

    Raises StepError naming the rank to blame once the budget is spent, or at once for a user's exception.
    """
    fence = Fence(order.checkpoints)
    budget = Budget(order.resources.retries)
    kept = verified_checkpoints(order.checkpoints)
    while True:
        generation = fence.advance(order.identity)
        emit("state", state="running", detail=f"forming a gang of {order.num_ranks}, generation {generation}")
        with form(generation) as formation:
            outcome = watch(formation, order.num_ranks, clock=clock)
        if not isinstance(outcome, Failure):
            return outcome
        emit("exit", cause=str(outcome.cause), message=outcome.message, generation=generation)
        now_kept = verified_checkpoints(order.checkpoints)
        if now_kept - kept:
            budget, kept = budget.renewed(), now_kept
        if not budget.allows(outcome.cause):
            raise StepError(outcome.message, where=outcome.where or f"step {order.identity.name}", hint=outcome.hint)
        budget = budget.after(outcome.cause)
        pause(budget.delay)


def watch(formation: Formation, num_ranks: int, *, clock: Callable[[], float]) -> list[Json] | Failure:
    """Follow one formation to its end: the values of all ranks, or whom to blame."""
    ends: dict[int, RankEnd] = {}
    movement = Movement()
    answered = dict.fromkeys(range(num_ranks), clock())
    failed_at: float | None = None
    told_to_stop = False
    while len(ends) < num_ranks:
        news = formation.poll(1.0 if failed_at is None else 0.1)
        now = clock()
        answered.update(dict.fromkeys(news.alive, now))
        for rank, phase, step in news.beats:
            movement.see(rank, phase, step, now)
        for end in news.ends:
            ends[end.rank] = end
            movement.forget(end.rank)
        if news.stopping and not told_to_stop:
            formation.stop()
            told_to_stop = True
        if failed_at is None and any(end.failure for end in ends.values()):
            failed_at = now
        if failed_at is not None:
            silent = [rank for rank, at in answered.items() if rank not in ends and at <= failed_at]
            if not silent or now - failed_at > GRACE_SECONDS or _is_loss(ends.values()):
                return blame(list(ends.values()), silent)
        elif suspects := movement.suspects(now):
            formation.dump_stacks()
            names = ", ".join(str(rank) for rank in suspects)
            return lost(Cause.HUNG, f"rank {names} of {num_ranks} does not move", where="", hint=HUNG_HINT)
    if any(end.failure for end in ends.values()):
        return blame(list(ends.values()), [])
    if any(end.stopped for end in ends.values()):
        return lost(Cause.PREEMPTED, "the ranks were asked to stop", where="", hint=HUNG_HINT)
    return [ends[rank].value for rank in range(num_ranks)]


def blame(ends: Sequence[RankEnd], silent: Sequence[int]) -> Failure:
    """Return the root failure: a lost rank before an exception, then the earliest.

    The peers of a rank that dies raise within milliseconds, often before its death is seen; their exceptions are
    echoes. A rank that answers no more counts as lost.
    """
    failures = [end.failure for end in sorted(ends, key=lambda end: end.at) if end.failure is not None]
    losses = [failure for failure in failures if failure.cause is not Cause.EXCEPTION]
    if silent and not losses:
        return lost(Cause.LOST, f"rank {silent[0]} does not answer", where="", hint=HUNG_HINT)
    return (losses or failures)[0]


def _is_loss(ends: Iterable[RankEnd]) -> bool:
    return any(end.failure is not None and end.failure.cause is not Cause.EXCEPTION for end in ends)
