"""Hosts of a cluster on one machine: namespaces of Linux, each with its own network, host name and processes.

A host is what its first process holds; when that dies, all its processes and its network end with it, as in a power
cut, and it dies with whoever made it. So nothing can be left behind, and nothing has a name or an address outside:
the switch between the hosts is a bridge in a namespace of its own, and any number of networks live side by side with
the same addresses. The file system is shared, apart from /proc.
"""

import contextlib
import functools
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import psutil

ADDRESSES = "10.57.0."
TOOLS = ("ip", "unshare", "nsenter", "setpriv")
RAY = str(Path(sys.executable).with_name("ray"))
SWITCH = "ip link add br0 type bridge && ip link set br0 up && echo up && exec sleep infinity"
HOST = 'hostname "$0" && ip link set lo up && echo up; sleep infinity & wait'  # a shell reaps what is orphaned
NODE_WORDS = "Ray runtime started"


@functools.cache
def why_no_hosts() -> str | None:
    """Return why this machine has no namespaces for hosts; None where it has."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        return f"hosts need {', '.join(missing)} (packages iproute2, util-linux)"
    made = "ip link add br0 type bridge && ip link add port1 type veth peer name port2"
    tried = subprocess.run([*_unshare(), "sh", "-c", made], capture_output=True, text=True, check=False)
    return None if tried.returncode == 0 else f"namespaces are not allowed here: {tried.stderr.strip()}"


class Host:
    """One machine: it runs commands, can be cut off and mended, and can die."""

    def __init__(self, network: "Network", name: str, number: int) -> None:
        self.name = name
        self.address = f"{ADDRESSES}{number}"
        self._network = network
        self._port = f"port{number}"
        self._held, self._init = _hold(HOST, name)
        network.switch(
            "ip", "link", "add", self._port, "type", "veth", "peer", "name", "eth0", "netns", str(self._init)
        )
        network.switch("ip", "link", "set", self._port, "up")
        self.mend()
        self.call("ip", "address", "add", f"{self.address}/24", "dev", "eth0")
        self.call("ip", "link", "set", "eth0", "up")

    def start(
        self, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
    ) -> "subprocess.Popen[bytes]":
        """Start a command on this host; its output goes to a file."""
        with log.open("ab") as output:
            return subprocess.Popen(
                [*self._enter, *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
            )

    def call(self, *command: str, timeout: float = 60, environment: Mapping[str, str] | None = None) -> str:
        """Return what a command on this host prints; CalledProcessError when it fails."""
        done = subprocess.run(
            [*self._enter, *command],
            capture_output=True,
            text=True,
            timeout=timeout,
            env={**os.environ, **(environment or {})},
            check=False,
        )
        assert done.returncode == 0, f"{command} on {self.name}: {done.stderr or done.stdout}"
        return done.stdout

    def kill(self, pid: int) -> None:
        """Send SIGKILL to a process by the number that it has on this host."""
        self.call("sh", "-c", f"kill -9 {pid}")

    def cut(self) -> None:
        """Take the host off the network, silently: whatever it sends or is sent is lost."""
        self._network.switch("ip", "link", "set", self._port, "nomaster")

    def mend(self) -> None:
        """Put it on the network again."""
        self._network.switch("ip", "link", "set", self._port, "master", "br0")

    def die(self) -> None:
        """Lose the host at once, without a last word on the network."""
        self.cut()
        self.close()

    def close(self) -> None:
        """End the host with all its processes."""
        _let_go(self._held, self._init)

    @property
    def lives(self) -> bool:
        """Whether it has not died."""
        return self._held.poll() is None

    def processes(self, word: str = "") -> list[psutil.Process]:
        """Return the living processes of this host whose title or command holds `word`."""
        space = _pid_space(self._init)
        return [
            process
            for process in psutil.process_iter()
            if process.pid != self._init
            and space is not None
            and _pid_space(process.pid) == space
            and word in (title := title_of(process))
            and title not in ("", "sleep infinity")
        ]

    @property
    def _enter(self) -> list[str]:
        return ["nsenter", "--target", str(self._init), "--net", "--uts", "--pid", "--mount", f"--wdns={os.getcwd()}"]


class Network:
    """A switch and the hosts that are plugged into it; leaving the block ends them all."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._hosts = 0

    def __enter__(self) -> "Network":
        held, self._switch = _hold(SWITCH, "switch")
        self._stack.callback(_let_go, held, self._switch)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def host(self, name: str) -> Host:
        """Plug a new host in."""
        self._hosts += 1
        host = Host(self, name, self._hosts)
        self._stack.callback(host.close)
        return host

    def switch(self, *command: str) -> None:
        """Run a command in the namespace of the switch."""
        subprocess.run(["nsenter", "--target", str(self._switch), "--net", *command], check=True)


class Cluster:
    """A Ray cluster over hosts: a head without CPUs, workers, and a desk, where a person would sit, without CPUs."""

    def __init__(self, network: Network, folder: Path, *, workers: Mapping[str, int], environment: Mapping[str, str]):
        self.folder = folder
        self.environment = dict(environment)
        self._nodes: dict[str, subprocess.Popen[bytes]] = {}
        self._cpus = {"head": 0, "desk": 0, **workers}
        self._network = network
        self.hosts = {name: network.host(name) for name in self._cpus}

    @property
    def head(self) -> Host:
        """The host of the cluster's head."""
        return self.hosts["head"]

    @property
    def desk(self) -> Host:
        """The host that drives, and does no work."""
        return self.hosts["desk"]

    @property
    def workers(self) -> list[Host]:
        """The hosts that work."""
        return [self.hosts[name] for name in self._cpus if name not in ("head", "desk")]

    @property
    def address(self) -> str:
        """What `--address` takes."""
        return f"{self.head.address}:6379"

    def start(self, *more: str) -> None:
        """Bring up what is down of head, workers and `more`: a host, or its node of Ray; return once all is up."""
        names = [name for name in self._cpus if name != "desk" or name in more]  # the head is the first
        down = [name for name in names if name not in self._nodes or self._nodes[name].poll() is not None]
        for batch in (down[:1], down[1:]) if "head" in down else (down,):
            logs = {name: self._start_node(name) for name in batch}
            for name, log in logs.items():
                if not self._is_up(name, log):  # Ray gives up after some time, which a busy machine may need
                    assert self._is_up(name, self._start_node(name)), log.read_text()

    def await_end(self, name: str) -> None:
        """Return once a host's node of Ray has ended: `ray start --block` sees the end of its raylet a little later."""
        until(lambda: self._nodes[name].poll() is not None, seconds=30)

    def _start_node(self, name: str) -> Path:
        host = self.hosts[name]
        if not host.lives:
            host = self.hosts[name] = self._network.host(name)
        where = (
            ["--head", "--port=6379", "--include-dashboard=false"] if name == "head" else [f"--address={self.address}"]
        )
        log = self.folder / f"{name}.log"
        log.unlink(missing_ok=True)
        self._nodes[name] = host.start(
            [RAY, "start", *where, f"--node-ip-address={host.address}", f"--num-cpus={self._cpus[name]}",
             f"--temp-dir={self.folder / name}", "--block", "--object-store-memory=100000000", "--disable-usage-stats"],
            log,
            self.environment,
        )  # fmt: skip
        return log

    def _is_up(self, name: str, log: Path) -> bool:
        node = self._nodes[name]
        until(lambda: NODE_WORDS in log.read_text() or node.poll() is not None, seconds=150)
        return node.poll() is None


@contextlib.contextmanager
def cluster_of_hosts(folder: Path, *, workers: Mapping[str, int], environment: Mapping[str, str]) -> Iterator[Cluster]:
    """Start a network and a cluster on it; `folder` has a short name, as Unix sockets lie in it."""
    with Network() as network:
        cluster = Cluster(network, folder, workers=workers, environment=environment)
        cluster.start()
        yield cluster


def until(happened: Callable[[], object], *, seconds: float) -> None:
    """Wait until something is the case; AssertionError when it is not in time."""
    pause, ends = threading.Event(), time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < ends, f"not within {seconds:g} s"
        pause.wait(0.05)


def title_of(process: psutil.Process) -> str:
    """Return the command of a living process; empty for one that has ended, and is not yet reaped."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def _unshare() -> list[str]:
    return [
        *("setpriv", "--pdeathsig", "KILL"),
        *("unshare", "--net", "--uts", "--pid", "--mount", "--fork", "--kill-child", "--mount-proc"),
    ]


def _hold(script: str, name: str) -> "tuple[subprocess.Popen[str], int]":
    """Start the first process of new namespaces; return who holds it, and its number."""
    held = subprocess.Popen(
        [*_unshare(), "sh", "-c", script, name],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    assert held.stdout is not None
    assert held.stdout.readline() == "up\n", f"no namespaces for {name}"
    return held, psutil.Process(held.pid).children()[0].pid


def _let_go(held: "subprocess.Popen[str]", first: int) -> None:
    """Kill the first process of namespaces, and with it all that live there; return once they have ended."""
    if held.poll() is None:
        os.kill(first, signal.SIGKILL)
    held.wait(timeout=30)
    if held.stdout is not None:
        held.stdout.close()


def _pid_space(pid: int) -> str | None:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return None
