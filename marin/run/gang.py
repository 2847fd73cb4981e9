"""A gang: ranks that start and die together, re-formed after a loss within its budget.

The policy only, as a loop over a `Site` (where a gang is formed, on some backend): how wide it is, who is to blame,
who is suspected of hanging, whether to form again. A wish to stop is seen here, and told to all ranks. It knows no Ray
and no torch.
"""

import statistics
import time
from collections import deque
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from marin.base.errors import Interrupted, StepError
from marin.base.json import Json
from marin.graph.resources import Resources
from marin.run.failure import Failure, lost
from marin.run.fence import Fence, verified_checkpoints
from marin.run.formation import Formation, News, Site, hold
from marin.run.order import GangOrder
from marin.run.rank import RankEnd
from marin.run.retry import RETRIED, Budget, Cause
from marin.store import StopWatch

SUSPECT_SECONDS = 60.0
SUSPECT_STEPS = 20
FIRST_TIMES = 10
GRACE_SECONDS = 3.0
SILENT_SECONDS = 10.0
HUNG_HINT = "the stacks of all ranks are in rank-N.log of the attempt"


@dataclass
class Movement:
    """Sees which ranks move; one that stands still for max(`floor`, 20 x median step) seconds is suspected.

    A rank is watched from its first beat on; until its step has moved once, ten times `floor` is allowed (compilation).
    """

    floor: float = SUSPECT_SECONDS
    last_step: int | None = None
    """The highest step that any rank was seen at."""
    _last: dict[int, tuple[str, int, float]] = field(default_factory=dict)
    _durations: deque[float] = field(default_factory=lambda: deque(maxlen=200))

    def see(self, rank: int, phase: str, step: int, now: float) -> None:
        """Take in a beat."""
        self.last_step = max(step, self.last_step or 0)
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
        limit = FIRST_TIMES * self.floor if median is None else max(self.floor, SUSPECT_STEPS * median)
        return sorted(rank for rank, (_, _, since) in self._last.items() if now - since > limit)

    def furthest_behind(self) -> list[int]:
        """Return the ranks at the lowest step, and of these the ones that stopped moving first."""
        lowest = min(step for _, step, _ in self._last.values())
        behind = {rank: since for rank, (_, step, since) in self._last.items() if step == lowest}
        first = min(behind.values())
        return sorted(rank for rank, since in behind.items() if since - first < 1.0)

    def words(self, rank: int, now: float) -> str:
        """Return where a rank has stood for how long."""
        if rank not in self._last:
            return "it has not begun to move"
        phase, step, since = self._last[rank]
        return f"in `{phase}` at step {step} for {now - since:.0f} s"


class Wish(IntEnum):
    """Why all ranks are to checkpoint and end; the weightier one counts."""

    NONE = 0
    GROW = 1
    PREEMPTED = 2
    STOPPED = 3


def run_gang(
    order: GangOrder,
    site: Site,
    *,
    emit: Callable[..., None],
    asked: Callable[[], bool] | None = None,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> list[Json]:
    """Return the ranks' values by rank; form the gang anew after each loss that the budget forgives.

    A re-forming on fewer nodes, or on more, costs nothing of the budget. Raises StepError naming the rank to blame
    once the budget is spent, or at once for a user's exception; Interrupted when the run is asked to stop.
    """
    watch_store = StopWatch(order.identity.store, order.identity.run, clock=clock)
    asked = asked or (lambda: watch_store.asked)
    resources = order.resources
    fence = Fence(order.checkpoints)
    budget = Budget(resources.retries)
    kept = verified_checkpoints(order.checkpoints)
    width = hold(site, resources, emit=emit, asked=asked, clock=clock)
    while True:
        generation = fence.advance(order.identity)
        num_ranks = width * resources.ranks_per_node
        emit("state", state="running", detail=_forming(num_ranks, width, resources, generation))
        with site.form(generation) as formation:
            emit("state", state="running", detail=_formed(num_ranks, width, resources, generation))
            outcome = watch(formation, num_ranks, clock=clock, asked=asked, hang_after=resources.hang_after)
        if not isinstance(outcome, Failure):
            return outcome
        emit("exit", cause=str(outcome.cause), message=outcome.message, generation=generation)
        if outcome.cause is Cause.STOPPED:
            raise Interrupted(f"{outcome.message}; {_going_on(order)}", hint="run the same command again to continue")
        now_kept = verified_checkpoints(order.checkpoints)
        if now_kept - kept:
            budget, kept = budget.renewed(), now_kept
        elastic = resources.least_nodes < resources.nodes and outcome.cause in RETRIED
        if not elastic and not budget.allows(outcome.cause):
            raise _final(outcome, order)
        before, width = width, hold(site, resources, emit=emit, asked=asked, clock=clock)
        if width < before:  # its node is gone, and it goes on without: the cluster's doing, not a fault that repeats
            continue
        if not budget.allows(outcome.cause):
            raise _final(outcome, order)
        budget = budget.after(outcome.cause)
        pause(budget.delay)


def _final(failure: Failure, order: GangOrder) -> StepError:
    hint = "; ".join(filter(None, (failure.hint, _going_on(order))))
    return StepError(failure.message, where=failure.where or f"step {order.identity.name}", hint=hint)


def _going_on(order: GangOrder) -> str:
    """Return in words where the next attempt begins."""
    if verified_checkpoints(order.checkpoints):
        return "the same command continues at the last checkpoint"
    return "there is no checkpoint yet: the same command begins anew"


def _forming(num_ranks: int, width: int, resources: Resources, generation: int) -> str:
    return f"forming {_formed(num_ranks, width, resources, generation)}"


def _formed(num_ranks: int, width: int, resources: Resources, generation: int) -> str:
    nodes = f" on {width} of {resources.nodes} nodes" if width < resources.nodes else ""
    return f"a gang of {num_ranks}{nodes}, generation {generation}"


def watch(
    formation: Formation,
    num_ranks: int,
    *,
    clock: Callable[[], float],
    asked: Callable[[], bool] = lambda: False,
    hang_after: float = SUSPECT_SECONDS,
) -> list[Json] | Failure:
    """Follow one formation to its end: the values of all ranks, or whom to blame."""
    ends: dict[int, RankEnd] = {}
    movement = Movement(hang_after)
    answered = dict.fromkeys(range(num_ranks), clock())
    failed_at: float | None = None
    wish = Wish.NONE
    while len(ends) < num_ranks:
        news = formation.poll(1.0 if failed_at is None else 0.1)
        now = clock()
        answered.update(dict.fromkeys(news.alive, now))
        for rank, phase, step in news.beats:
            movement.see(rank, phase, step, now)
        for end in news.ends:
            ends[end.rank] = end
            movement.forget(end.rank)
        before, wish = wish, max(wish, _wish(news, asked))
        if wish and not before:
            formation.stop()
        if failed_at is None and any(end.failure for end in ends.values()):
            failed_at = now
        if failed_at is not None:
            silent = [rank for rank, at in answered.items() if rank not in ends and at <= failed_at]
            if not silent or now - failed_at > GRACE_SECONDS or _is_loss(ends.values()):
                return blame(list(ends.values()), silent, formation.title)
        elif movement.suspects(now) or _silent(answered, ends, now, FIRST_TIMES * hang_after):
            formation.dump_stacks()
            return _hung(_silent(answered, ends, now, SILENT_SECONDS), movement, formation.title, now)
    if any(end.failure for end in ends.values()):
        return blame(list(ends.values()), [], formation.title)
    if wish and any(end.stopped for end in ends.values()):
        return _ended_by(wish, movement.last_step)
    return [ends[rank].value for rank in range(num_ranks)]


def _wish(news: News, asked: Callable[[], bool]) -> Wish:
    if asked():
        return Wish.STOPPED
    # A rank that stops at once may have ended before it could report that it was told to.
    if news.stopping or any(end.stopped for end in news.ends):
        return Wish.PREEMPTED
    return Wish.GROW if news.room else Wish.NONE


def _ended_by(wish: Wish, step: int | None) -> Failure:
    """Return how a gang ended whose ranks did as they were asked."""
    at = "" if step is None else f" at step {step}"
    match wish:
        case Wish.STOPPED:
            return lost(Cause.STOPPED, f"stopped{at}", where="", hint="")
        case Wish.GROW:
            return lost(Cause.PREEMPTED, f"stopped{at} to go on with more nodes", where="", hint=HUNG_HINT)
        case _:
            return lost(Cause.PREEMPTED, f"a rank was told to end (SIGTERM); all stopped{at}", where="", hint=HUNG_HINT)


def _silent(answered: Mapping[int, float], ends: Container[int], now: float, seconds: float) -> list[int]:
    """Return the ranks that have not ended and have given no sign of life for so long."""
    return [rank for rank, at in answered.items() if rank not in ends and now - at > seconds]


def _hung(silent: Sequence[int], movement: Movement, title: Callable[[int], str], now: float) -> Failure:
    """Name who hangs: ranks that give no sign of life, or else those that are furthest behind.

    The ranks that wait for them in a collective stand still as long, and are suspected as soon.
    """
    blamed = silent or movement.furthest_behind()
    names = ", ".join(title(rank) for rank in blamed[:4]) + (" and others" if len(blamed) > 4 else "")
    one = len(blamed) == 1
    what = ("gives" if one else "give") + " no sign of life" if silent else ("does" if one else "do") + " not move"
    return lost(Cause.HUNG, f"{names} {what}: {movement.words(blamed[0], now)}", where="", hint=HUNG_HINT)


def blame(ends: Sequence[RankEnd], silent: Sequence[int], title: Callable[[int], str]) -> Failure:
    """Return the root failure: a lost rank before an exception, then the earliest.

    The peers of a rank that dies raise within milliseconds, often before its death is seen; their exceptions are
    echoes. A rank that answers no more counts as lost.
    """
    failures = [end.failure for end in sorted(ends, key=lambda end: end.at) if end.failure is not None]
    losses = [failure for failure in failures if failure.cause is not Cause.EXCEPTION]
    if silent and not losses:
        return lost(Cause.LOST, f"{title(silent[0])} does not answer", where="", hint=HUNG_HINT)
    return (losses or failures)[0]


def _is_loss(ends: Iterable[RankEnd]) -> bool:
    return any(end.failure is not None and end.failure.cause is not Cause.EXCEPTION for end in ends)
