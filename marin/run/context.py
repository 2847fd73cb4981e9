"""The `Context` that a step's `run` is given: parents by field, output, shard maps, gangs, metrics, progress."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from marin import fs
from marin.base.errors import ConfigurationError
from marin.base.json import Json
from marin.graph.artifact import Artifact
from marin.graph.context import Mapped, Rendezvous
from marin.graph.files import FileRef, Output, Shard
from marin.graph.resources import Resources
from marin.graph.step import Step, dependencies
from marin.run.backend import Workers
from marin.run.gang import run_gang
from marin.run.order import GangOrder, Order, pack
from marin.run.shardpool import ShardMap
from marin.store import Manifest, Store

A = TypeVar("A", bound=Artifact)

PROGRESS_SECONDS = 0.5


class RunContext:
    """One attempt's view of the store and the workers."""

    def __init__(
        self,
        order: Order,
        step: Step[Any],
        *,
        store: Store,
        parents: dict[str, Manifest],
        workers: Workers,
        emit: Callable[..., None],
        log: Callable[[str], None],
    ) -> None:
        identity = order.identity
        self.metrics: dict[str, float] = {}
        self.shard_counts: Counter[str] = Counter()
        self._order = order
        self._step = step
        self._store = store
        self._parents = [(parent, parents[path]) for path, parent in dependencies(step)]
        self._workers = workers
        self._emit = emit
        self._log = log
        self._output = store.attempt_output(identity.step_name, identity.fingerprint, identity.attempt)
        self._progress_at = 0.0

    @property
    def output(self) -> Output:
        return self._output

    @property
    def inputs(self) -> tuple[FileRef, ...]:
        return self._order.pins

    @property
    def resources(self) -> Resources:
        return self._order.resources

    @property
    def checkpoints(self) -> str:
        return self._store.checkpoints_folder(self._order.identity.step_name, self._order.identity.fingerprint)

    def checkpoints_of(self, step: Step[Any]) -> str:
        """Return the URL of the checkpoints of a step among this step's fields."""
        return fs.join(self._store.artifact_url(self._parent(step)), "checkpoints")

    def load(self, step: Step[A]) -> A:
        """Return the committed artifact of a step among this step's fields; a copy of it will do too."""
        return cast(A, step.artifact_type().open(self._store.contents(self._parent(step))))

    def _parent(self, step: Step[Any]) -> Manifest:
        found = [manifest for parent, manifest in self._parents if parent is step]
        found = found or [manifest for parent, manifest in self._parents if same_computation(parent, step)]
        if not found:
            name = type(self._step).__name__
            raise ConfigurationError(
                f"ctx.load got {type(step).__name__}, which is no field of {name}",
                where=f"step {self._order.identity.name}",
                hint=f"add a field to {name}, such as `other: Step[{step.artifact_type().__name__}]`, and load that",
            )
        return found[0]

    def map(self, fn: Callable[..., Json], shards: Sequence[Shard], /, **config: object) -> Mapped:
        """Run `fn` on each shard that is not known yet."""
        if not hasattr(fn, "__qualname__"):  # a partial, or an object that can be called
            raise ConfigurationError(
                f"ctx.map got {type(fn).__name__}, which is no function",
                where=f"step {self._order.identity.name}",
                hint="give a function at the top of a module, and the rest by name: ctx.map(fn, shards, n=1)",
            )
        work = ShardMap(
            identity=self._order.identity,
            step_class=type(self._step),
            fn=fn,
            config=config,
            cache=self._store.shards,
            retries=self._order.resources.retries,
            emit=self._emit,
            log=self._log,
        )
        try:
            return Mapped(work.run(shards, lambda: self._workers.pool(self._order.resources)))
        finally:
            self.shard_counts.update(work.counts)

    def gang(self, fn: Callable[..., Json], /, *, rendezvous: Callable[[], Rendezvous], **config: object) -> list[Json]:
        """Run `fn` on all ranks, re-forming the gang after losses."""
        identity = self._order.identity
        order = GangOrder(
            identity=identity,
            call=pack((fn, rendezvous, config), where=f"step {identity.name}, gang of {fn.__qualname__}"),
            num_ranks=self._order.resources.num_ranks,
            resources=self._order.resources,
            folder=self._store.attempt_folder(identity.step_name, identity.fingerprint, identity.attempt),
            checkpoints=self.checkpoints,
        )
        with self._workers.site(order) as site:
            return run_gang(order, site, emit=self._emit)

    def metric(self, **values: float) -> None:
        """Record numbers; the last of each name is kept in the manifest."""
        self.metrics.update(values)
        self._emit("metric", values=values)

    def progress(self, done: float, total: float, unit: str) -> None:
        """Say how far the step is, at most twice a second and at the end."""
        now = time.monotonic()
        if done >= total or now - self._progress_at >= PROGRESS_SECONDS:
            self._progress_at = now
            self._emit("progress", done=done, total=total, unit=unit)


def same_computation(left: Step[Any], right: Step[Any]) -> bool:
    """Whether two steps agree in class and fields, whatever `.on` and `.named` said."""
    return type(left) is type(right) and all(
        getattr(left, name) == getattr(right, name) for name in type(left).model_fields
    )
