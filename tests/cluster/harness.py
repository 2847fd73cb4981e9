"""A Ray cluster of several nodes as processes of this machine, which lose workers, raylets, nodes and the head.

Every node has a folder of its own and is ended by its own handle. All of them share this machine's address, process
table and clock; for cut links and hosts that vanish see hosts.py. `Drive` is `marin run` against such a cluster in a
process of its own, with what can be seen of it in its store; `assert_nothing_left` is what each failure must satisfy.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from ray._private.state import GlobalState
from ray._raylet import GcsClientOptions

from marin.store import EventReader, Leases, Store

MARIN = str(Path(sys.executable).with_name("marin"))
RAY = str(Path(sys.executable).with_name("ray"))
ADDRESS = "127.0.0.1"
STARTED = "Ray runtime started"
# Ray's own choices are for minutes of trouble: a head is given up after 60 s, a silent node after some 30 s.
IMPATIENT = {
    "RAY_gcs_rpc_server_reconnect_timeout_s": "20",
    "RAY_raylet_start_wait_time_s": "90",
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "5",
}
# What processes of a cluster wait for from a peer that stands still; marin's own choice is 20 s and 20 s.
WATCHFUL = {"RAY_grpc_client_keepalive_time_ms": "2000", "RAY_grpc_client_keepalive_timeout_ms": "2000"}


class Node:
    """`ray start --block`: the raylet, its agents and its workers."""

    def __init__(self, name: str, command: list[str], log: Path, environment: Mapping[str, str]) -> None:
        self.name = name
        self.log = log
        with log.open("w") as output:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **environment},
                start_new_session=True,
            )
        self._family: dict[int, psutil.Process] = {}

    def await_start(self) -> None:
        """Return once it has joined; AssertionError with its words if it does not."""
        until(lambda: STARTED in self.log.read_text() or not self.lives, seconds=90)
        assert self.lives, self.log.read_text()

    @property
    def lives(self) -> bool:
        """Whether `ray start --block` still runs."""
        return self.process.poll() is None

    @property
    def raylet(self) -> psutil.Process:
        """The raylet."""
        return next(each for each in self.family() if each.name() == "raylet")

    def family(self) -> list[psutil.Process]:
        """Return all processes that this node has started and that live."""
        if self.lives:
            for each in psutil.Process(self.process.pid).children(recursive=True):
                self._family[each.pid] = each
        return [each for each in self._family.values() if lives(each)]

    def workers(self, word: str = "") -> list[psutil.Process]:
        """Return the living workers and ranks that have work, whose title holds `word`."""
        titles = [(each, title_of(each)) for each in self.family()]
        return [each for each, title in titles if _is_work(title) and word in title]

    def die(self) -> None:
        """Lose the node: all its processes at once."""
        family = self.family()
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        for each in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        self.process.wait(timeout=30)
        until(lambda: not self.family(), seconds=10)


class Cluster:
    """A head without CPUs, and nodes that work."""

    def __init__(self, folder: Path, *, workers: Mapping[str, int], environment: Mapping[str, str]) -> None:
        self.folder = folder
        self.nodes: dict[str, Node] = {}
        self._cpus = {"head": 0, **workers}
        self._environment = dict(environment)
        self._port = free_port()
        self._started = 0
        self._forgotten: set[str] = set()
        self.more: dict[str, dict[str, str]] = {}
        """Variables of single nodes."""

    @property
    def address(self) -> str:
        """What `--address` takes."""
        return f"{ADDRESS}:{self._port}"

    @property
    def workers(self) -> list[Node]:
        """The nodes that work."""
        return [node for name, node in self.nodes.items() if name != "head"]

    def start(self) -> None:
        """Bring up what is down, and wait until the cluster is whole; a new head is a new cluster, with new nodes."""
        down = [name for name in self._cpus if name in self._forgotten or not self._lives(name)]
        if "head" in down:
            down = list(self._cpus)
            self.close()
            self._start("head").await_start()
        started = [self._start(name) for name in down if name != "head"]
        for node in started:
            node.await_start()
        self._forgotten.clear()
        until(lambda: self.num_alive() == len(self._cpus), seconds=30)

    def restart_head(self) -> None:
        """Replace the head by one that knows nothing of this cluster; `start` replaces the nodes that it forgot."""
        self._start("head").await_start()
        self._forgotten = set(self._cpus) - {"head"}

    @contextlib.contextmanager
    def with_node(self, name: str, cpus: int, environment: Mapping[str, str]) -> Iterator[Node]:
        """Add a node with variables of its own; it dies at the end."""
        self._cpus[name], self.more[name] = cpus, dict(environment)
        try:
            self.start()
            yield self.nodes[name]
        finally:
            del self._cpus[name]
            self.nodes.pop(name).die()

    def node_of(self, pid: int) -> Node:
        """Return the node that has a process."""
        return next(node for node in self.nodes.values() if any(each.pid == pid for each in node.family()))

    def num_alive(self) -> int:
        """Return how many nodes the head counts."""
        return sum(node["Alive"] for node in self._ask(lambda state: state.node_table()))

    def leftovers(self) -> list[str]:
        """Return the actors, placement groups and processes that no run needs any more."""
        actors: dict[str, Any] = self._ask(lambda state: state.actor_table(None, None, None))
        groups: dict[str, Any] = self._ask(lambda state: state.placement_group_table())
        left = [f"actor {a['ActorClassName']} {a['State']}" for a in actors.values() if a["State"] != "DEAD"]
        left += [f"placement group {g['name']} {g['state']}" for g in groups.values() if g["state"] != "REMOVED"]
        return left + [f"{title_of(each)} on {node.name}" for node in self.nodes.values() for each in node.workers()]

    def close(self) -> None:
        """End every node with all that it has started."""
        for node in self.nodes.values():
            node.die()

    def _lives(self, name: str) -> bool:
        return name in self.nodes and self.nodes[name].lives

    def _start(self, name: str) -> Node:
        if name in self.nodes:
            self.nodes[name].die()
        self._started += 1  # a folder of its own each time: Ray finds the address of the head that died in the old one
        where = [f"--address={self.address}"]
        if name == "head":
            where = ["--head", f"--port={self._port}", "--include-dashboard=false"]
        folder = self.folder / f"{name}{self._started}"
        command = [
            *(RAY, "start", *where, f"--node-ip-address={ADDRESS}", f"--num-cpus={self._cpus[name]}", "--block"),
            *(f"--temp-dir={folder}", "--object-store-memory=100000000", "--disable-usage-stats"),
        ]
        environment = {**self._environment, **self.more.get(name, {})}
        self.nodes[name] = Node(name, command, self.folder / f"{name}.log", environment)
        return self.nodes[name]

    def _ask(self, question: Callable[[GlobalState], Any]) -> Any:
        state = GlobalState()
        options = GcsClientOptions.create(self.address, None, allow_cluster_id_nil=True, fetch_cluster_id_if_nil=False)
        state._initialize_global_state(options)
        try:
            return question(state)
        finally:
            state.disconnect()


@contextlib.contextmanager
def cluster_of_nodes(
    *, workers: Mapping[str, int], environment: Mapping[str, str] = IMPATIENT, more: Mapping[str, dict[str, str]] = {}
) -> Iterator[Cluster]:
    """Start a cluster; `more` holds the variables of single nodes."""
    folder = Path(tempfile.mkdtemp(prefix="mc-"))  # short: Unix sockets lie below
    cluster = Cluster(folder, workers=workers, environment=environment)
    cluster.more = dict(more)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()
        shutil.rmtree(folder, ignore_errors=True)


class Ended(NamedTuple):
    """How `marin run --json` ended."""

    code: int
    json: dict[str, Any]
    said: str


class Drive:
    """`marin run TARGET --json` in a process of its own; what runs leave is read from the store."""

    def __init__(
        self,
        target: str,
        *,
        store: Path,
        address: str,
        options: Mapping[str, object],
        environment: Mapping[str, str] = {},
    ) -> None:
        self.store = store
        self._known = self._runs()
        listed = [f"--{name}={value}" for name, value in options.items()]
        where = ["--store", str(store), *(["--address", address] if address else [])]
        number = len(list(store.parent.glob(f"{store.name}.*.log")))
        self.output, self.log = (store.with_suffix(f".{number}.{kind}") for kind in ("json", "log"))
        with self.output.open("w") as output, self.log.open("w") as log:
            self.process = subprocess.Popen(
                [MARIN, "run", target, "--json", *where, *listed],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=log,
                env={**os.environ, **environment},
                start_new_session=True,
            )

    def _runs(self) -> set[str]:
        return {path.name for path in (self.store / "runs").glob("*")}

    @property
    def run(self) -> str:
        """The id of the run."""
        (run,) = self._runs() - self._known
        return run

    def events(self, kind: str) -> list[dict[str, Any]]:
        """Return the events of a kind, in order."""
        if not self._runs() - self._known:
            return []
        return [event for event in EventReader(str(self.store), self.run).poll() if event["kind"] == kind]

    def until(self, happened: Callable[[], object], *, seconds: float = 120) -> None:
        """Wait until something is the case; fail with the run's words if it ends or does not get there."""
        try:
            until(lambda: happened() or self.process.poll() is not None, seconds=seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.story()}") from error
        assert happened(), self.story()

    def end(self, seconds: float = 120) -> Ended:
        """Return how it ended; fail with the run's words if it does not end in time."""
        try:
            code = self.process.wait(timeout=seconds)
        except subprocess.TimeoutExpired as error:
            raise AssertionError(f"no end within {seconds:g} s\n{self.story()}") from error
        text = self.output.read_text()
        try:
            return Ended(code, json.loads(text), self.log.read_text())
        except json.JSONDecodeError as error:
            raise AssertionError(f"no JSON: {text!r}, exit code {code}\n{self.story()}") from error

    def kill(self) -> None:
        """End the driver and what it has started on this machine."""
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(timeout=30)

    def story(self) -> str:
        """Return what the run said, for a failed test."""
        kinds = ("state", "exit", "placement", "log")
        hidden = ("fingerprint", "step", "v", "attempt")
        told = [{k: v for k, v in event.items() if k not in hidden} for kind in kinds for event in self.events(kind)]
        return "\n".join([self.log.read_text(), *map(str, told)])


def assert_nothing_left(cluster: Cluster, drive: Drive, *, seconds: float = 15) -> None:
    """Fail unless a run has left no actor, placement group, busy worker, driver process or lease."""
    assert drive.process.poll() is not None, "the driver still runs"
    try:
        until(lambda: not cluster.leftovers(), seconds=seconds)
    except AssertionError as error:
        raise AssertionError(f"left after {seconds:g} s: {cluster.leftovers()}\n{drive.story()}") from error
    opened = Store.open(str(drive.store), write=True)
    made = {(event["step"], event["fingerprint"]) for event in drive.events("state") if "fingerprint" in event}
    leases = Leases(opened, "probe", user="test")
    taken = [leases.acquire(*each) for each in sorted(made)]
    for lease in taken:
        assert not hasattr(lease, "user"), f"a lease is left: {lease}"
        leases.release(lease)  # type: ignore[arg-type]  # a Lease: a Holder has a user


def _is_work(title: str) -> bool:
    works = title.startswith("ray::") and "IDLE" not in title and "Agent" not in title
    return works or "marin.run.forkserver" in title  # where ranks live


def until(happened: Callable[[], object], *, seconds: float) -> None:
    """Wait until something is the case; AssertionError when it is not in time."""
    ends = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < ends, f"not within {seconds:g} s"
        time.sleep(0.05)


def lives(process: psutil.Process) -> bool:
    """Whether a process has not ended; one that nobody has reaped has."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def title_of(process: psutil.Process) -> str:
    """Return the title of a living process; empty for one that has ended."""
    try:
        return " ".join(process.cmdline()).strip()
    except psutil.Error:
        return ""


def free_port() -> int:
    """Return a port that nobody listens at."""
    with socket.socket() as free:
        free.bind((ADDRESS, 0))
        return int(free.getsockname()[1])
