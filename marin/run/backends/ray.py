"""The Ray backend: a private embedded cluster, or one that answers at a given address.

Invariant: it never joins a cluster that nobody named (a bare `ray.init()` would), never waits for a dead address
longer than 20 s, and ends by its own handle what it has started itself. Each run has workers of its own, so that no
process holds the code of an earlier run.
"""

import importlib.util
import logging
import os
import socket
import threading
from collections.abc import Sequence
from typing import Any

import ray
from ray import exceptions

from marin.base.errors import ClusterError, ConfigurationError
from marin.graph.step import Step
from marin.run.backend import Ended
from marin.run.backends.ray_worker import cause_of, options, run_attempt
from marin.run.order import Order, pack
from marin.run.placement import Bundle, check_fits, demand_of

PROBE_SECONDS = 5.0
CONNECT_SECONDS = 10.0
OBJECT_STORE_BYTES = 200 * 2**20


class RayBackend:
    """Attempts as Ray tasks. With no address it starts a cluster on this machine, which ends with this process."""

    def __init__(self, address: str | None = None, *, num_cpus: int | None = None) -> None:
        self._address = None if address in (None, "local") else address
        self._num_cpus = num_cpus
        self._environment: dict[str, Any] = {}
        self._owned = False
        self._nodes: list[Bundle] = []
        self._attempts: dict[Any, str] = {}

    @property
    def width(self) -> int:
        """One attempt for each CPU of the cluster, at least two."""
        return max(2, int(sum(node.get("CPU", 0) for node in self._nodes)))

    def start(self, code_folders: Sequence[str], run: str) -> None:
        """Start or reach the cluster; a cluster that this process already uses is used again."""
        variables = {"PYTHONPATH": os.pathsep.join(code_folders), "MARIN_RUN": run}
        self._environment = {"env_vars": variables}
        if not ray.is_initialized():
            if self._address is None:
                self._embed()
            else:
                self._connect(self._address)
            self._owned = True
        nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
        self._nodes = [node["Resources"] for node in nodes if node["Alive"]]

    def check(self, name: str, step: Step[Any]) -> None:
        """Raise if the cluster can never hold the step, or no worker could import it."""
        if type(step).__module__ == "__main__":
            raise ConfigurationError(
                f"{type(step).__name__} is defined in the script itself, which workers cannot import",
                where=f"step {name}",
                hint="put the steps into a module and import them, or use `marin run FILE`",
            )
        check_fits(name, demand_of(step), self._nodes)

    def submit(self, order: Order, step: Step[Any]) -> None:
        """Queue an attempt as one task, spread over the nodes."""
        chosen = options(demand_of(step).attempt, name=order.identity.name)
        task = ray.remote(run_attempt).options(
            **chosen, scheduling_strategy="SPREAD", runtime_env=self._environment, retry_exceptions=False
        )
        packed = pack(step, where=f"step {order.identity.name}")
        self._attempts[task.remote(order, packed)] = order.identity.attempt

    def wait(self, timeout: float) -> list[Ended]:
        """Return the attempts that ended."""
        if not self._attempts:
            return []
        ready, _ = ray.wait(list(self._attempts), timeout=timeout)
        return [self._ended(reference) for reference in ready]

    def stop(self) -> None:
        """Kill every attempt; its shards and ranks end with it, as they belong to its process."""
        for reference in self._attempts:
            ray.cancel(reference, force=True)
        self._attempts.clear()

    def close(self) -> None:
        """Leave the cluster; an embedded one ends here."""
        if self._owned and ray.is_initialized():
            self.stop()
            ray.shutdown()
        self._owned = False

    def _ended(self, reference: Any) -> Ended:  # Any: ray.ObjectRef
        attempt = self._attempts.pop(reference)
        try:
            return Ended(attempt, report=ray.get(reference))
        except exceptions.RayError as error:
            cause, message = cause_of(error)
            return Ended(attempt, cause=cause, message=message)

    def _embed(self) -> None:
        try:
            ray.init(
                address="local",
                num_cpus=self._num_cpus,
                object_store_memory=OBJECT_STORE_BYTES,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
                runtime_env=self._environment,
            )
        except (RuntimeError, OSError, ValueError, exceptions.RayError) as error:
            raise ClusterError(
                f"the embedded Ray cluster did not start: {error}",
                where="this machine",
                hint='look into /tmp/ray/session_latest/logs, or run without Ray: backend="inline"',
            ) from error

    def _connect(self, address: str) -> None:
        probe(address)
        failure: list[BaseException] = []

        def connect() -> None:
            try:
                ray.init(
                    address=address, log_to_driver=False, logging_level=logging.ERROR, runtime_env=self._environment
                )
            except (RuntimeError, OSError, ValueError, exceptions.RayError) as error:
                failure.append(error)

        # Ray waits without limit for a server that accepts and does not answer; a thread can be left behind.
        thread = threading.Thread(target=connect, name="ray-connect", daemon=True)
        thread.start()
        thread.join(CONNECT_SECONDS)
        if thread.is_alive() or failure:
            why = f": {str(failure[0]).strip().splitlines()[0]}" if failure else f" within {CONNECT_SECONDS:g} s"
            raise ClusterError(
                f"no Ray cluster answers at {address}{why}",
                where=address,
                hint="check `ray status --address HOST:6379` there, and that its Ray and Python versions are yours",
            )


def probe(address: str) -> None:
    """Raise ClusterError unless something listens at `host:port` or `ray://host:port`."""
    scheme, _, rest = address.rpartition("://")
    host, _, port = rest.rpartition(":")
    if not host or not port.isdigit() or scheme not in ("", "ray"):
        raise ClusterError(
            f"{address!r} is no address of a Ray cluster",
            where=address,
            hint='write "HOST:6379" or "ray://HOST:10001"; without an address a private cluster is started here',
        )
    if scheme == "ray" and importlib.util.find_spec("grpc") is None:
        raise ClusterError(
            "an address with ray:// needs Ray's client",
            where=address,
            hint='pip install "ray[client]", or give HOST:6379 from a machine of the cluster',
        )
    try:
        socket.create_connection((host, int(port)), timeout=PROBE_SECONDS).close()
    except OSError as error:
        raise ClusterError(
            f"nothing answers at {address}: {error}",
            where=address,
            hint="start the cluster (`ray start --head`), mend the address, or leave it out to run on this machine",
        ) from error
