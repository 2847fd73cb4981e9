"""Watching the cluster itself: its head, and the raylet of this machine that this process depends on.

Ray does not say that they are gone: a wait for a task goes on for ever once the raylet here has died, the head was
started anew, or the server behind `ray://` has ended, and Ray ends, without a word that this process could speak, a
driver whose head is silent for 60 s. So a thread asks, in a way that neither ends the process nor waits for long, and
whoever waits looks at what was heard.
Invariant: `check` never waits; it raises soon after a loss, and for a silent head before Ray ends the process.
"""

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import psutil
import ray
from ray import exceptions

from marin.base.errors import ClusterError
from marin.run.backends.ray_connect import RERUN, connection_lost, is_disconnected, knock, refused

ASK_SECONDS = 2.0
ANSWER_SECONDS = 3.0
RAYS_LIMIT = "RAY_gcs_rpc_server_reconnect_timeout_s"
RAYS_SECONDS = 60.0
SERVERS = ("gcs_server", "raylet")
"""The processes of an embedded cluster that are children of this one, which therefore sees at once that they end."""
SHARE = 0.75
"""Of Ray's own patience: the rest is for ending the run, with its record and its leases."""


def patience() -> float:
    """Return for how many seconds a silent head is waited for: less than Ray itself would, as it was told."""
    told = os.environ.get(RAYS_LIMIT, "")
    return SHARE * (float(told) if told.isdigit() and int(told) else RAYS_SECONDS)


class ClusterWatch:
    """Knows whether the cluster that this process is connected to is still there."""

    def __init__(self, address: str | None) -> None:
        self._address = address
        self._gcs: Any = getattr(ray._private.worker.global_worker, "gcs_client", None)  # Any: ray._raylet.GcsClient
        self._client: Any = None if self._gcs else _client()  # Any: ray.util.client.worker.Worker
        self._node = ray.NodeID.from_hex(ray.get_runtime_context().get_node_id()) if self._gcs is not None else None
        self._servers = [each for each in psutil.Process().children() if each.name() in SERVERS]
        self._patience = patience()
        self._heard = time.monotonic()
        self._loss: ClusterError | None = None
        self._closed = threading.Event()
        threading.Thread(target=self._listen, name="cluster-watch", daemon=True).start()

    @property
    def lost(self) -> bool:
        """Whether `check` has raised or would raise."""
        return self._loss is not None or self._is_silent

    @property
    def _is_silent(self) -> bool:
        return time.monotonic() - self._heard > self._patience

    def check(self) -> None:
        """Raise ClusterError if the cluster is lost, as far as is known."""
        if self._loss is None and self._is_silent:
            again = f"start the cluster again (`ray start --head`), then {RERUN}" if self._address else RERUN
            self._loss = self._error(f"the head of the Ray cluster has not answered for {self._patience:.0f} s", again)
        if self._loss is not None:
            raise self._loss

    def confirm(self) -> None:
        """Return once the head has answered a question; ClusterError if the cluster is lost.

        What ends while the cluster ends is no attempt's fault, and any other question to a lost head ends this process.
        """
        while not self._ask():
            self.check()
            self._closed.wait(1.0)
        self.check()

    @contextlib.contextmanager
    def connected(self) -> Iterator[None]:
        """Raise ClusterError in place of what Ray's client says of a connection that is gone."""
        try:
            yield
        except BaseException as error:
            if not is_disconnected(error):
                raise
            self.check()
            self._loss = connection_lost(self._address)
            raise self._loss from error

    def close(self) -> None:
        """Stop asking."""
        self._closed.set()

    def _listen(self) -> None:
        while not self._closed.wait(ASK_SECONDS) and self._loss is None:
            self._ask()
            if self._client is not None and self.lost:
                self._client._in_shutdown = True  # else its calls are tried again for ever, and whoever waits is stuck

    def _ask(self) -> bool:
        """Return whether there was an answer; note what it says."""
        if self._client is not None:
            return self._ask_client()
        if any(map(_has_ended, self._servers)):
            self._loss = raylet_lost(self._address)
            return True
        try:
            (alive,) = self._gcs.check_alive([self._node], timeout=ANSWER_SECONDS)
        except exceptions.AuthenticationError as error:
            self._loss = self._refusal(str(error))
            return True
        except exceptions.RayError:
            return False
        self._heard = time.monotonic()
        if not alive:
            self._loss = raylet_lost(self._address)
        return True

    def _ask_client(self) -> bool:
        try:
            answers = knock(str(self._address))
        except ClusterError as error:
            self._loss = error
            return True
        if answers:
            self._heard = time.monotonic()
        return answers

    def _refusal(self, said: str) -> ClusterError:
        if "WrongClusterID" not in said:
            return refused(self._address or "this machine")
        what = "the head of the Ray cluster was started anew while this run was on it"
        return self._error(what, f"see that all nodes have joined the new head, then {RERUN}")

    def _error(self, what: str, hint: str) -> ClusterError:
        return ClusterError(what, where=self._address or "the embedded cluster", hint=hint)


def _client() -> Any:  # Any: ray.util.client.worker.Worker
    """Return what holds the connection of `ray://`."""
    return ray.util.client.ray.get_context().client_worker  # type: ignore[no-untyped-call]


def _has_ended(server: psutil.Process) -> bool:
    try:
        return bool(server.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def raylet_lost(address: str | None) -> ClusterError:
    """Return the error of a process whose own raylet is gone: no other attempt can do better."""
    rejoin = "join the cluster again (`ray start --address=HOST:6379`), then " if address else ""
    return ClusterError(
        "Ray has ended on this machine: its processes were killed, or the cluster gave it up while it was cut off",
        where=address or "the embedded cluster",
        hint=f"{rejoin}{RERUN}",
    )
