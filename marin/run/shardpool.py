"""The driver's side of `ctx.map`: what is known is reused, the rest runs in a bounded pool, results in input order.

Invariant: a result comes from the shard cache or from a worker's own commit, never from memory alone, so that the map
can be killed anywhere. What it holds grows with the results alone: groups are made when there is room for them, and
two for each worker are under way. A shard that fails on two workers is set aside and the others finish. It knows no
Ray: a `Pool` runs groups of shards somewhere.
"""

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from marin.base.errors import Interrupted, StepError
from marin.graph.files import Shard
from marin.graph.recipe import shard_fingerprints
from marin.run.failure import Failure, lost
from marin.run.order import GroupReport, Identity, ShardGroup, ShardReport, pack
from marin.run.pending import FirstShard
from marin.run.retry import Budget
from marin.run.shardpace import Pace
from marin.store import ShardCache, StopWatch
from marin.store.events import any_begun_under
from marin.store.reused import record_reuse

PROGRESS_SECONDS = 0.5
TEXTS_KEPT = 20
"""Failures whose whole text is logged: when every shard fails, the others say nothing new."""


class Pool(Protocol):
    """Runs groups of shards on workers."""

    @property
    def width(self) -> int:
        """How many groups may run at once."""

    def submit(self, group: ShardGroup) -> None:
        """Queue a group."""

    def wait(self, timeout: float) -> list[tuple[ShardGroup, GroupReport]]:
        """Return the groups that ended within `timeout` seconds."""

    def why_waiting(self, seconds: float) -> str:
        """Return what groups wait for that have not begun after some seconds; empty where that is not known."""

    def close(self) -> None:
        """Stop whatever still runs."""


@dataclass
class ShardMap:
    """One call of `ctx.map`, from the shards that are known to the last one computed."""

    identity: Identity
    step_class: type[Any]
    fn: Callable[..., Any]
    config: Mapping[str, object]
    cache: ShardCache
    retries: int
    emit: Callable[..., None]
    log: Callable[[str], None]
    done: dict[str, Shard] = field(default_factory=dict)
    failed: dict[str, Failure] = field(default_factory=dict)
    """Shards that were set aside, each with its first failure."""
    inputs: dict[str, Shard] = field(default_factory=dict)
    reused: int = 0
    _again: deque[ShardGroup] = field(default_factory=deque)
    _first: dict[str, Failure] = field(default_factory=dict)
    _budgets: dict[str, Budget] = field(default_factory=dict)
    _pace: Pace = field(default_factory=Pace)
    _said: float = 0.0

    @property
    def where(self) -> str:
        """Names the map in errors."""
        return f"step {self.identity.name}, map of {self.fn.__module__}.{self.fn.__qualname__}"

    @property
    def counts(self) -> dict[str, int]:
        """`total`, `reused` and `computed` shards, each distinct input once."""
        return {"total": len(self.inputs), "reused": self.reused, "computed": len(self.done) - self.reused}

    def run(self, shards: Sequence[Shard], pool: Callable[[], Pool]) -> tuple[Shard, ...]:
        """Return the committed result of each shard, in the order given; the pool is made only if one is missing."""
        call = pack((self.step_class, self.fn, dict(self.config)), where=self.where)
        keys = shard_fingerprints(self.step_class, self.fn, self.config, shards)
        self.inputs = dict(zip(keys, shards, strict=True))
        self.done = dict(self.cache.get_many(list(self.inputs)))
        self.reused = len(self.done)
        if self.reused:  # before they are used: whoever cleans the store sees that they are needed
            identity = self.identity
            record_reuse(identity.store, identity.step_name, identity.fingerprint, identity.attempt, list(self.done))
        self.emit("shards", **self.counts)
        if self.reused < len(self.inputs):
            workers = pool()
            try:
                self._compute(call, workers)
            finally:
                workers.close()
        self.emit("shards", **self.counts)
        self._say_progress(now=True)
        if self.failed:
            raise self._error()
        if len(self.done) < len(self.inputs):
            kept = f"{len(self.done)} of {len(self.inputs)} shards are kept"
            raise Interrupted(f"stopped: {kept}", where=self.where, hint="run the same command again to continue")
        return tuple(self.done[key] for key in keys)

    def _compute(self, call: bytes, pool: Pool) -> None:
        """Run what is missing; once the run is asked to stop nothing is begun, and what is under way is waited for."""
        stop = StopWatch(self.identity.store, self.identity.run)
        stopped, running = False, 0
        groups = self._groups(call, pool)
        first = FirstShard(self.emit, self._has_begun, pool.why_waiting)
        while True:
            stopped = stopped or stop.asked
            while not stopped and running < 2 * pool.width and (group := next(groups, None)):
                pool.submit(group)
                running += 1
            if not running:
                return
            first.look()
            for group, report in pool.wait(timeout=1.0):
                running -= 1
                first.begin()
                stopped = stopped or report.stopped
                if report.printed:
                    self.log(report.printed)
                if report.cause:
                    self._after_loss(group, report)
                else:
                    self._settle(group, report)
            self._say_progress()

    def _groups(self, call: bytes, pool: Pool) -> "_Groups":
        missing = [key for key in self.inputs if key not in self.done]

        def cut() -> Iterator[ShardGroup]:
            keys, left = iter(missing), len(missing)
            while left:
                size = self._pace.group(left, pool.width)
                taken = tuple((key, self.inputs[key]) for key in itertools.islice(keys, size))
                left -= len(taken)
                yield ShardGroup(self.identity, call, taken)

        return _Groups(self._again, cut())

    def _has_begun(self) -> bool:
        identity = self.identity
        return any_begun_under(identity.store, identity.run, identity.attempt)

    def _say_progress(self, *, now: bool = False) -> None:
        if now or time.monotonic() - self._said >= PROGRESS_SECONDS:
            self._said = time.monotonic()
            usual = {"usual": round(self._pace.median, 6)} if self._pace.median else {}
            self.emit("progress", done=len(self.done), total=len(self.inputs), unit="shards", **usual)

    def _settle(self, group: ShardGroup, report: GroupReport) -> None:
        """Record what a group reports; a shard that failed gets a second try, alone and on another worker."""
        self._pace.add(each.seconds for each in report.shards)
        for each in report.shards:
            if each.shard is not None:
                self.done[each.fingerprint] = each.shard
            else:
                self._try_elsewhere(group, each, report.worker)

    def _try_elsewhere(self, group: ShardGroup, report: ShardReport, worker: str) -> None:
        key, failure = report.fingerprint, report.failure
        assert failure is not None
        is_second = key in self._first
        if is_second:
            self.failed[key] = self._first[key]
        else:
            self._first[key] = replace(failure, text="")
            self._again.append(replace(group, shards=((key, self.inputs[key]),), elsewhere=True))
        if len(self._first) <= TEXTS_KEPT:
            tried = f"shard {self.inputs[key].name}, try {2 if is_second else 1} of 2, on {worker}"
            self.log(f"{tried}:\n{failure.text}")
        elif len(self._first) == TEXTS_KEPT + 1 and not is_second:
            self.log("more shards fail; what they say is left out\n")

    def _after_loss(self, group: ShardGroup, report: GroupReport) -> None:
        """Keep what the lost worker had committed; blame the first shard it had not, and requeue the rest."""
        assert report.cause is not None
        keys = [key for key, _ in group.shards]
        self.done.update(self.cache.get_many(keys))
        left = [key for key in keys if key not in self.done]
        if not left:
            return
        blamed, others = left[0], left[1:]
        budget = self._budgets.get(blamed, Budget(self.retries))
        name = self.inputs[blamed].name
        self.log(f"shard {name}: {report.cause}: {report.message}\n")
        self.emit("exit", cause=str(report.cause), message=report.message, shard=name)
        if budget.allows(report.cause):
            self._budgets[blamed] = budget.after(report.cause)
            self._again.append(replace(group, shards=((blamed, self.inputs[blamed]),)))
        else:
            spent = f"the budget of .on(retries={budget.retries}) is spent"
            hint = f"{report.hint or 'ask for memory or smaller shards'}; {spent}"
            self.failed[blamed] = lost(report.cause, report.message, where=self.where, hint=hint)
        if others:
            self._again.append(replace(group, shards=tuple((key, self.inputs[key]) for key in others)))

    def _error(self) -> StepError:
        key, first = next(iter(self.failed.items()))
        names = ", ".join(self.inputs[key].name for key in list(self.failed)[:5])
        more = f" and {len(self.failed) - 5} more" if len(self.failed) > 5 else ""
        what = f"{len(self.failed)} of {len(self.inputs)} shards failed ({names}{more}); first {self.inputs[key].name}"
        return StepError(f"{what}: {first.message}", where=first.where or self.where, hint=first.hint)


class _Groups(Iterator[ShardGroup]):
    """What is to be tried again, then the next of the rest; it may go on after it had nothing."""

    def __init__(self, again: deque[ShardGroup], rest: Iterator[ShardGroup]) -> None:
        self._again, self._rest = again, rest

    def __next__(self) -> ShardGroup:
        return self._again.popleft() if self._again else next(self._rest)
