"""The worker's side of the Ray backend: attempts and shard groups as Ray tasks, and the pool an attempt maps with.

Ray's own retries are off everywhere: attempts, shards and gangs are retried by their own rules. Arguments and results
are orders and reports; no data passes through Ray's object store.
"""

from collections.abc import Callable
from typing import Any

import ray
from ray import exceptions

from marin.graph.resources import Resources
from marin.run.attempt import execute
from marin.run.backends.ray_gang import forming
from marin.run.gang import Form
from marin.run.order import GangOrder, GroupReport, Order, Report, ShardGroup, unpack
from marin.run.placement import Bundle, shard_bundle
from marin.run.retry import Cause
from marin.run.shardpool import Pool
from marin.run.shardwork import run_group


def run_attempt(order: Order, step: bytes) -> Report:
    """Body of the Ray task of one attempt."""
    return execute(order, lambda: unpack(step), RayWorkers())


def run_shards(group: ShardGroup) -> GroupReport:
    """Body of the Ray task of one group of shards."""
    return run_group(group)


def options(bundle: Bundle, *, name: str) -> dict[str, Any]:
    """Return the options of a Ray task that asks for `bundle`."""
    return {
        "name": name,
        "num_cpus": bundle.get("CPU", 0),
        "num_gpus": bundle.get("GPU", 0) or None,
        "memory": bundle.get("memory", 0) or None,
        "max_retries": 0,
    }


def cause_of(error: BaseException) -> tuple[Cause, str]:
    """Return why a Ray task or actor left no report, and the first line of what Ray says."""
    message = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if isinstance(error, exceptions.OutOfMemoryError):
        return Cause.OUT_OF_MEMORY, "the worker was killed: the node ran out of memory"
    if isinstance(error, exceptions.TaskCancelledError):
        return Cause.STOPPED, "stopped"
    if isinstance(error, exceptions.RayTaskError):
        return Cause.EXCEPTION, message
    if isinstance(error, exceptions.WorkerCrashedError):
        return Cause.LOST, "the worker process was killed or crashed"
    return Cause.LOST, message


class RayWorkers:
    """The cluster as an attempt sees it from inside its task."""

    own_process = True

    def pool(self, resources: Resources) -> Pool:
        """Return a pool whose shards ask for these resources, each."""
        return RayPool(shard_bundle(resources))

    def former(self, order: GangOrder, emit: Callable[..., None]) -> Form:
        """Return what forms the gang from actors, once per generation."""
        return forming(order, emit)


class RayPool:
    """A bounded number of Ray tasks over groups of shards."""

    def __init__(self, bundle: Bundle) -> None:
        total: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
        self.width = max(1, int(min((total.get(key, 0) / need for key, need in bundle.items()), default=1)))
        self._bundle = bundle
        self._task = ray.remote(run_shards)
        self._groups: dict[Any, ShardGroup] = {}

    def submit(self, group: ShardGroup) -> None:
        """Queue a group as one task."""
        reference = self._task.options(**options(self._bundle, name=f"{group.identity.name} shards")).remote(group)
        self._groups[reference] = group

    def wait(self, timeout: float) -> list[tuple[ShardGroup, GroupReport]]:
        """Return the groups that ended; while it waits, Ray lends this task's CPU to others."""
        ready, _ = ray.wait(list(self._groups), timeout=timeout)
        return [(self._groups.pop(reference), self._report(reference)) for reference in ready]

    def close(self) -> None:
        """Kill what still runs: the map has failed, timed out or been stopped."""
        for reference in self._groups:
            ray.cancel(reference, force=True)
        self._groups.clear()

    def _report(self, reference: Any) -> GroupReport:  # Any: ray.ObjectRef
        try:
            report: GroupReport = ray.get(reference)
        except exceptions.RayError as error:
            cause, message = cause_of(error)
            return GroupReport(cause=cause, message=message)
        return report
