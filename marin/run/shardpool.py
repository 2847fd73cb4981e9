"""The driver's side of `ctx.map`: what is known is reused, the rest runs in a bounded pool, results in input order.

Invariant: a result comes from the shard cache or from a worker's own commit, never from memory alone, so that the map
can be killed anywhere. A shard that fails twice is set aside and the others finish. It knows no Ray: a `Pool` runs
groups of shards somewhere.
"""

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from marin.base.errors import StepError
from marin.graph.files import Shard
from marin.graph.recipe import shard_fingerprints
from marin.run.failure import Failure, lost
from marin.run.order import GroupReport, Identity, ShardGroup, ShardReport, pack
from marin.run.retry import Budget
from marin.store import ShardCache
from marin.store.reused import record_reuse

MAX_TRIES = 2
MAX_GROUP = 64
GROUPS_PER_WORKER = 8


class Pool(Protocol):
    """Runs groups of shards on workers."""

    @property
    def width(self) -> int:
        """How many groups may run at once."""

    def submit(self, group: ShardGroup) -> None:
        """Queue a group."""

    def wait(self, timeout: float) -> list[tuple[ShardGroup, GroupReport]]:
        """Return the groups that ended within `timeout` seconds."""

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
    inputs: dict[str, Shard] = field(default_factory=dict)
    reused: int = 0
    _tries: Counter[str] = field(default_factory=Counter)
    _budgets: dict[str, Budget] = field(default_factory=dict)

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
        missing = [key for key in self.inputs if key not in self.done]
        self.emit("shards", **self.counts)
        if missing:
            workers = pool()
            try:
                self._compute(call, missing, workers)
            finally:
                workers.close()
        self.emit("shards", **self.counts)
        self.emit("progress", done=len(self.done), total=len(self.inputs), unit="shards")
        if self.failed:
            raise self._error()
        return tuple(self.done[key] for key in keys)

    def _compute(self, call: bytes, missing: Sequence[str], pool: Pool) -> None:
        queue = deque(self._group(call, keys) for keys in grouped(missing, pool.width))
        running = 0
        while queue or running:
            while queue and running < 2 * pool.width:
                pool.submit(queue.popleft())
                running += 1
            for group, report in pool.wait(timeout=1.0):
                running -= 1
                if report.printed:
                    self.log(report.printed)
                again = self._after_loss(group, report) if report.cause else self._settle(report.shards)
                queue.extend(self._group(call, keys) for keys in again)
                self.emit("progress", done=len(self.done), total=len(self.inputs), unit="shards")

    def _group(self, call: bytes, keys: Sequence[str]) -> ShardGroup:
        return ShardGroup(self.identity, call, tuple((key, self.inputs[key]) for key in keys))

    def _settle(self, reports: Sequence[ShardReport]) -> list[list[str]]:
        """Record what a group reports; return the shards that deserve a second try, each alone."""
        again = []
        for report in reports:
            if report.shard is not None:
                self.done[report.fingerprint] = report.shard
                continue
            assert report.failure is not None
            self._tries[report.fingerprint] += 1
            name = self.inputs[report.fingerprint].name
            self.log(f"shard {name}, try {self._tries[report.fingerprint]} of {MAX_TRIES}:\n{report.failure.text}")
            if self._tries[report.fingerprint] < MAX_TRIES:
                again.append([report.fingerprint])
            else:
                self.failed[report.fingerprint] = report.failure
        return again

    def _after_loss(self, group: ShardGroup, report: GroupReport) -> list[list[str]]:
        """Keep what the lost worker had committed; blame the first shard it had not, and requeue the rest."""
        assert report.cause is not None
        keys = [key for key, _ in group.shards]
        self.done.update(self.cache.get_many(keys))
        left = [key for key in keys if key not in self.done]
        if not left:
            return []
        blamed, others = left[0], left[1:]
        budget = self._budgets.get(blamed, Budget(self.retries))
        name = self.inputs[blamed].name
        self.log(f"shard {name}: {report.cause}: {report.message}\n")
        self.emit("exit", cause=str(report.cause), message=report.message, shard=name)
        if budget.allows(report.cause):
            self._budgets[blamed] = budget.after(report.cause)
            return [[blamed], *([others] if others else [])]
        hint = f"ask for memory or smaller shards; {budget.retries} retries are spent, .on(retries=...) sets them"
        self.failed[blamed] = lost(report.cause, report.message, where=self.where, hint=hint)
        return [others] if others else []

    def _error(self) -> StepError:
        key, first = next(iter(self.failed.items()))
        names = ", ".join(self.inputs[key].name for key in list(self.failed)[:5])
        more = f" and {len(self.failed) - 5} more" if len(self.failed) > 5 else ""
        what = f"{len(self.failed)} of {len(self.inputs)} shards failed ({names}{more}); first {self.inputs[key].name}"
        return StepError(f"{what}: {first.message}", where=first.where or self.where, hint=first.hint)


def grouped(keys: Sequence[str], width: int) -> list[list[str]]:
    """Cut the work so that each worker gets about eight groups: few enough to be cheap, enough to balance."""
    size = max(1, min(MAX_GROUP, len(keys) // (GROUPS_PER_WORKER * width)))
    return [list(keys[start : start + size]) for start in range(0, len(keys), size)]
