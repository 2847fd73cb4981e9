"""The worker's side of the Ray backend: attempts and shard groups as Ray tasks, and the pool an attempt maps with.

Ray's own retries are off everywhere: attempts, shards and gangs are retried by their own rules. Arguments and results
are orders and reports; no data passes through Ray's object store.
"""

import contextlib
import re
import time
from contextlib import AbstractContextManager
from typing import Any

import ray
from ray import exceptions

from marin import fs
from marin.graph.resources import Resources
from marin.run.attempt import execute
from marin.run.backends.ray_gang import RaySite
from marin.run.backends.ray_preflight import alive_nodes
from marin.run.formation import Site
from marin.run.order import GangOrder, GroupReport, Order, Report, ShardGroup, unpack
from marin.run.pending import Room, why_waiting
from marin.run.placement import Bundle, shard_bundle
from marin.run.retry import Cause
from marin.run.shardpool import Pool
from marin.run.shardwork import run_group

LOOK_SECONDS = 10.0
"""Between two looks at how wide the cluster is."""

NODE_IP = re.compile(r"Node IP: ([^,\s]+)")


def run_attempt(order: Order, step: bytes) -> Report:
    """Body of the Ray task of one attempt."""
    fs.be_patient()
    return execute(order, lambda: unpack(step), RayWorkers())


def run_shards(group: ShardGroup) -> GroupReport:
    """Body of the Ray task of one group of shards."""
    fs.be_patient()
    return run_group(group, own_process=True)


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
    if isinstance(error, exceptions.NodeDiedError):
        named = NODE_IP.search(message)
        return Cause.LOST, f"the node {named[1] if named else 'of the worker'} was lost, or cut off for too long"
    return Cause.LOST, message


class RayWorkers:
    """The cluster as an attempt sees it from inside its task."""

    own_process = True

    def pool(self, resources: Resources) -> Pool:
        """Return a pool whose shards ask for these resources, each."""
        return RayPool(shard_bundle(resources))

    def site(self, order: GangOrder) -> AbstractContextManager[Site]:
        """Return the cluster as the place where the gang is formed."""
        return contextlib.closing(RaySite(order))


def _elsewhere() -> dict[str, Any]:
    """Return this task's environment with a mark of its own: Ray then takes a worker process that ran nothing else.

    There is one such mark, so that all second tries share their workers: each new environment is slow to start.
    """
    mine = dict(ray.get_runtime_context().runtime_env)
    return {**mine, "env_vars": {**mine.get("env_vars", {}), "MARIN_SECOND_TRY": "1"}}


def rooms(bundle: Bundle, node: Bundle) -> int:
    """Return how often a node could hold a bundle."""
    return int(min((node.get(key, 0) / need for key, need in bundle.items()), default=1))


class RayPool:
    """A bounded number of Ray tasks over groups of shards."""

    def __init__(self, bundle: Bundle) -> None:
        self._bundle = bundle
        self._task = ray.remote(run_shards)
        self._groups: dict[Any, ShardGroup] = {}
        self._width, self._looked = 1, float("-inf")

    @property
    def width(self) -> int:
        """How many shards the nodes that are there now can hold at once; memory counts where it was asked for."""
        if time.monotonic() - self._looked >= LOOK_SECONDS:
            self._looked = time.monotonic()
            self._width = max(1, sum(rooms(self._bundle, node["Resources"]) for node in alive_nodes()))
        return self._width

    def submit(self, group: ShardGroup) -> None:
        """Queue a group as one task."""
        chosen = options(self._bundle, name=f"{group.identity.name} shards")
        if group.elsewhere:
            chosen |= {"runtime_env": _elsewhere(), "scheduling_strategy": "SPREAD"}
        self._groups[self._task.options(**chosen).remote(group)] = group

    def wait(self, timeout: float) -> list[tuple[ShardGroup, GroupReport]]:
        """Return the groups that ended; while it waits, Ray lends this task's CPU to others."""
        ready, rest = ray.wait(list(self._groups), timeout=timeout)
        if ready and rest:  # it returns as soon as one has ended; with many workers, more have by now
            ready += ray.wait(rest, num_returns=len(rest), timeout=0)[0]
        return [(self._groups.pop(reference), self._report(reference)) for reference in ready]

    def why_waiting(self, seconds: float) -> str:
        """Return what groups wait for, as the cluster is now."""
        free: dict[str, float] = ray.available_resources()  # type: ignore[no-untyped-call]
        return why_waiting(self._bundle, Room(free, [node["Resources"] for node in alive_nodes()]), seconds)

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
