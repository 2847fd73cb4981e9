"""The Ray backend: a private embedded cluster, or one that answers at a given address.

Invariant: it never joins a cluster that nobody named (a bare `ray.init()` would), never waits for a dead address
longer than 20 s, and ends by its own handle what it has started itself. Each run has workers of its own, so that no
process holds the code of an earlier run.
"""

import os
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import ray
from ray import exceptions

from marin.base.errors import ClusterError, ConfigurationError
from marin.graph.step import Step
from marin.run import machine
from marin.run.backend import Ended
from marin.run.backends.ray_connect import connect, connected_to, embed
from marin.run.backends.ray_placement import remove_groups
from marin.run.backends.ray_preflight import alive_nodes, ask_nodes, cluster_grows
from marin.run.backends.ray_watch import ClusterWatch, raylet_lost
from marin.run.backends.ray_worker import cause_of, options, run_attempt
from marin.run.order import Order, pack
from marin.run.pending import Pending, Room
from marin.run.placement import Bundle, check_fits, demand_of
from marin.run.preflight import Needs, Node, compare, gang_devices, limits, needs_of, refuse
from marin.run.ray_settings import watchful


class RayBackend:
    """Attempts as Ray tasks. With no address it starts a cluster on this machine, which ends with this process."""

    def __init__(self, address: str | None = None, *, num_cpus: int | None = None, tree: str | None = None) -> None:
        self._address = None if address in (None, "local") else address
        self._tree = tree
        self._num_cpus = num_cpus
        self._environment: dict[str, Any] = {}
        self._run = ""
        self._owned = False
        self._nodes: list[Bundle] = []
        self._grows: bool | None = None
        self._attempts: dict[Any, str] = {}
        self._pending = Pending()
        self._watch: ClusterWatch | None = None
        self._task: Any = None

    @property
    def width(self) -> int:
        """One attempt for each CPU of the cluster, at least two."""
        return max(2, int(sum(node.get("CPU", 0) for node in self._nodes)))

    def start(self, code_folders: Sequence[str], run: str) -> None:
        """Start or reach the cluster, once for each run; one that this process already uses is used again."""
        if self._run == run:
            return
        variables = {"MARIN_RUN": run, **watchful()}
        self._environment = {"env_vars": {"PYTHONPATH": os.pathsep.join(code_folders), **variables}}
        if not ray.is_initialized():
            if self._address is None:
                self._environment = embed(self._num_cpus, self._environment)
            else:
                self._environment = connect(self._address, variables, code_folders, self._tree)
            self._owned = True
        with self._connected():
            if self._watch is None:
                self._watch = ClusterWatch(self._address)
            self._nodes = [node["Resources"] for node in alive_nodes()]
            # Once a run: Ray pickles the function and checks the environment anew for each such call, a millisecond a
            # step.
            self._task = ray.remote(runtime_env=self._environment, retry_exceptions=False)(run_attempt)
        self._run = run

    def check(self, name: str, step: Step[Any]) -> None:
        """Raise if the cluster can never hold the step, or no worker could import it."""
        if type(step).__module__ == "__main__":
            raise ConfigurationError(
                f"{type(step).__name__} is defined in the script itself, which workers cannot import",
                where=f"step {name}",
                hint="put the steps into a module and import them, or use `marin run FILE`",
            )
        try:
            check_fits(name, demand_of(step), self._nodes)
        except ClusterError:
            if not self._may_grow():  # an autoscaler has kinds of nodes of which none is there now
                raise

    def preflight(self, steps: Sequence[Step[Any]], store: str) -> list[str]:
        """Ask every node of a cluster; of a private one, look at this machine alone, at no cost."""
        if self._address is None and len(self._nodes) == 1:
            here = Node("this machine", machine.scarce(), self._nodes[0])
            return refuse(list(limits(here, Needs(store, gangs_on=gang_devices(steps)))), 1)
        needs = needs_of(steps, store)
        with self._connected():
            nodes = ask_nodes(needs, self._environment)
        return refuse(compare(machine.gather(needs.modules), nodes, needs), len(nodes))

    def examine(self, store: str) -> list[Node]:
        """Return what every node says of itself, for whoever wants to see it."""
        return ask_nodes(Needs(store), self._environment)

    def submit(self, order: Order, step: Step[Any]) -> None:
        """Queue an attempt as one task, spread over the nodes; one node keeps its workers from task to task."""
        bundle = demand_of(step).attempt
        chosen = options(bundle, name=order.identity.name)
        task = self._task.options(**chosen, scheduling_strategy="SPREAD" if len(self._nodes) > 1 else "DEFAULT")
        packed = pack(step, where=f"step {order.identity.name}")
        with self._connected():
            self._attempts[task.remote(order, packed)] = order.identity.attempt
        self._pending.add(order.identity.attempt, bundle)

    def waiting(self, has_begun: Callable[[Sequence[str]], Container[str]]) -> Mapping[str, str]:
        """Return what attempts wait for that have not begun for long."""
        asked = self._pending.due()
        if not asked:
            return {}
        begun = has_begun(asked)
        self._pending.forget(attempt for attempt in asked if attempt in begun)
        still = [attempt for attempt in asked if attempt not in begun]
        if not still:
            return {}
        self._confirm()
        with self._connected():
            free: dict[str, float] = ray.available_resources()  # type: ignore[no-untyped-call]
            self._nodes = [node["Resources"] for node in alive_nodes()]
        return self._pending.say(still, Room(free, self._nodes, grows=self._may_grow()))

    def wait(self, timeout: float) -> list[Ended]:
        """Return the attempts that ended; ClusterError when the cluster itself is lost."""
        if self._watch is not None:
            self._watch.check()
        if not self._attempts:
            return []
        with self._connected():
            ready, _ = ray.wait(list(self._attempts), timeout=timeout)
            return [self._ended(reference) for reference in ready]

    def end(self, attempt: str) -> None:
        """Kill one attempt; its shards and ranks end with it, as they belong to its process."""
        for reference in [each for each, name in self._attempts.items() if name == attempt]:
            ray.cancel(reference, force=True)
            del self._attempts[reference]
        self._pending.forget([attempt])
        self._confirm()
        remove_groups(attempt)

    def stop(self) -> None:
        """Kill every attempt; in a cluster that is lost they end with their nodes, and nobody is there to be asked."""
        if self._watch is None or not self._watch.lost:
            for reference in self._attempts:
                ray.cancel(reference, force=True)
            for attempt in self._attempts.values():
                remove_groups(attempt)
        self._attempts.clear()

    def close(self) -> None:
        """Leave the cluster; an embedded one ends here."""
        if self._owned:
            try:
                with connected_to(self._address):
                    if ray.is_initialized():
                        self.stop()
            except ClusterError:  # whoever is gone need not be told, and why is known
                self._attempts.clear()
            ray.shutdown()
        if self._watch is not None:
            self._watch.close()
        self._watch, self._owned, self._run = None, False, ""

    def _ended(self, reference: Any) -> Ended:  # Any: ray.ObjectRef
        attempt = self._attempts.pop(reference)
        self._pending.forget([attempt])
        try:
            return Ended(attempt, report=ray.get(reference))
        except exceptions.LocalRayletDiedError as error:
            raise raylet_lost(self._address) from error
        except exceptions.RayError as error:
            self._confirm()
            remove_groups(attempt)
            cause, message = cause_of(error)
            return Ended(attempt, cause=cause, message=message)

    def _confirm(self) -> None:
        """Return once the head has answered: a question that it does not answer would end this process."""
        if self._watch is not None:
            self._watch.confirm()

    def _connected(self) -> AbstractContextManager[None]:
        return connected_to(self._address) if self._watch is None else self._watch.connected()

    def _may_grow(self) -> bool:
        if self._grows is None:
            with self._connected():
                self._grows = self._address is not None and cluster_grows()
        return self._grows
