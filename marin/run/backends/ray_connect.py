"""Reaching a Ray cluster, or starting one on this machine; and how first-party code gets to its nodes.

Invariant: no address is waited for longer than 20 s, and what does not answer, or does not let us in, is named. Code
travels with the connection wherever a node is another machine: nobody needs a shared file system.
"""

import contextlib
import functools
import importlib.util
import logging
import os
import signal
import socket
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import psutil
import ray
from ray import exceptions

from marin.base.errors import ClusterError, ConfigurationError
from marin.run import worktree
from marin.run.address import cluster_address, split_cluster
from marin.run.backends.ray_lean import lean
from marin.run.ray_settings import find_token, token_hint

try:
    import grpc
except ImportError:  # an extra of Ray: without it a refused token is only known by its silence
    grpc = None

log = logging.getLogger(__name__)

PROBE_SECONDS = 5.0
KNOCK_SECONDS = 3.0
CONNECT_SECONDS = 10.0
ALIVE_SECONDS = 60.0
"""For a cluster that has answered a knock: it may be busy, and for ray:// it starts a process first."""
SENT_BYTES_PER_SECOND = 1_000_000
OBJECT_STORE_BYTES = 200 * 2**20
_KNOCKS = {"": "/ray.rpc.NodeInfoGcsService/CheckAlive", "ray": "/ray.rpc.RayletDriver/ClusterInfo"}
DISCONNECTED: tuple[type[Exception], ...] = (ConnectionError, *((grpc.RpcError,) if grpc else ()))
"""What Ray's client raises once its server is gone."""
RERUN = "run the same command again: what is finished is kept"
_embedding = threading.Event()
_FAILURES = (RuntimeError, OSError, ValueError, exceptions.RayError)

Environment = dict[str, Any]  # Any: Ray's runtime environment


def embed(num_cpus: int | None, environment: Environment) -> Environment:
    """Start a private cluster on this machine, which ends with this process; return what tasks ask for beside.

    That is nothing where all its workers have the environment's variables from the start.
    """
    try:
        with _own_signals(), _own_process_groups(), lean(environment["env_vars"]) as is_lean:
            left = {} if is_lean else environment
            ray.init(
                address="local",
                num_cpus=num_cpus,
                object_store_memory=OBJECT_STORE_BYTES,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
                runtime_env=left,
            )
    except _FAILURES as error:
        raise ClusterError(
            f"the embedded Ray cluster did not start: {error}",
            where="this machine",
            hint='look into /tmp/ray/session_latest/logs, or run without Ray: backend="inline"',
        ) from error
    return left


def connect(address: str, variables: Mapping[str, str], folders: Sequence[str], tree: str | None) -> Environment:
    """Connect, and return the environment of workers that find the code of these folders.

    `tree` is the root of the working tree if the cluster has it already: this process is the driver of a Ray job.
    """
    probe(address)
    seconds = ALIVE_SECONDS if knock(address) else CONNECT_SECONDS
    _check_joined(address)
    if tree is not None or _is_here(address):
        environment = _environment(variables, folders, tree)
        _init(address, environment, seconds)
        with connected_to(address):
            nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
        if tree is not None or all(_is_mine(str(node["NodeManagerAddress"])) for node in nodes if node["Alive"]):
            return environment
        ray.shutdown()
    return _connect_with_tree(address, variables, folders, seconds)


def _connect_with_tree(
    address: str, variables: Mapping[str, str], folders: Sequence[str], seconds: float
) -> Environment:
    """Connect and send the working tree: a node is another machine."""
    root = worktree.find_root(os.getcwd())
    try:
        tree = worktree.read_tree(root)
    except ConfigurationError as error:
        log.warning("%s; it is not sent, so every node has to see these folders itself", error.what)
        environment = _environment(variables, folders, None)
        _init(address, environment, seconds)
        return environment
    worktree.warn_of_left_out(tree)
    environment = _environment(variables, folders, root)
    with tempfile.TemporaryDirectory(prefix="marin-tree-") as folder:
        archive = worktree.write_archive(tree, folder)
        sent = {**environment, "working_dir": archive} if archive else environment
        _init(address, sent, seconds + tree.bytes / SENT_BYTES_PER_SECOND)
    return environment


def _environment(variables: Mapping[str, str], folders: Sequence[str], tree: str | None) -> Environment:
    """Return the workers' environment; a worker starts in its copy of the tree, so paths below that are relative."""
    path = os.pathsep.join(worktree.relative_folders(folders, tree))
    return {"env_vars": {"PYTHONPATH": path, **variables}}


def _init(address: str, environment: Environment, seconds: float) -> None:
    failure: list[BaseException] = []

    def connect_there() -> None:
        for is_last in (False, True):
            try:
                ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, runtime_env=environment)
            except _FAILURES as error:
                # The server behind ray:// forks a process for each client, which now and then dies in gRPC before it
                # is anything; seen with a server that has just started.
                if is_last or not isinstance(error, ConnectionAbortedError):
                    failure.append(error)
                    return
            else:
                return

    # Ray waits without limit for a server that accepts and does not answer; a thread can be left behind.
    thread = threading.Thread(target=connect_there, name="ray-connect", daemon=True)
    with _own_signals():
        thread.start()
        thread.join(seconds)
    if not thread.is_alive() and not failure:
        return
    if failure and isinstance(failure[0], exceptions.AuthenticationError):
        raise refused(address) from failure[0]
    why = f": {_gist(failure[0])}" if failure else f" within {seconds:.0f} s"
    raise ClusterError(
        f"no Ray cluster answers at {address}{why}",
        where=address,
        hint="check `ray status --address HOST:6379` there, and that its Ray and Python versions are yours",
    ) from (failure[0] if failure else None)


@contextlib.contextmanager
def connected_to(address: str | None) -> Iterator[None]:
    """Raise ClusterError in place of what Ray's client says of a connection that is gone."""
    try:
        yield
    except BaseException as error:
        if is_disconnected(error):
            raise connection_lost(address) from error
        raise


def is_disconnected(error: BaseException) -> bool:
    """Whether Ray's client says so that its server is gone; one of its words has no kind of its own."""
    return isinstance(error, DISCONNECTED) or "Ray Client is not connected" in str(error)


def connection_lost(address: str | None) -> ClusterError:
    """Return the error for a connection that is gone."""
    return ClusterError(
        "the connection to the Ray cluster is lost: its server has ended, or is not reached any more",
        where=address or "the embedded cluster",
        hint=f"see that the cluster's head still runs, then {RERUN}",
    )


def _gist(error: BaseException) -> str:
    """Return the one line of Ray's words that says what happened: the last, where it hands on a traceback."""
    while error.__cause__ is not None:  # Ray's own "failed to connect" says nothing; what it was raised from does
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return lines[-1] if any(line.startswith("Traceback") for line in lines) else lines[0]


def probe(address: str) -> None:
    """Raise ClusterError unless something listens at `host:port` or `ray://host:port`."""
    scheme, host, port = split_cluster(str(cluster_address(address)))
    if scheme == "ray" and importlib.util.find_spec("grpc") is None:
        raise ClusterError(
            "an address with ray:// needs Ray's client",
            where=address,
            hint='pip install "ray[client]", or give HOST:6379 from a machine of the cluster',
        )
    try:
        socket.create_connection((host, port), timeout=PROBE_SECONDS).close()
    except OSError as error:
        raise ClusterError(
            f"nothing answers at {address}: {error}",
            where=address,
            hint="start the cluster (`ray start --head`), mend the address, or leave it out to run on this machine",
        ) from error


def _check_joined(address: str) -> None:
    """Raise ClusterError unless a node of Ray runs on this machine: only ray:// does without.

    Ray itself looks for one for a minute, and then says that it could not connect.
    """
    if split_cluster(address)[0] or any(each.info["name"] == "raylet" for each in psutil.process_iter(["name"])):
        return
    raise ClusterError(
        f"this machine is no node of the Ray cluster at {address}",
        where=address,
        hint=f"`ray start --address={address}` joins it; ray://HOST:10001 and `marin submit` do without",
    )


def knock(address: str) -> bool:
    """Return whether a cluster has answered; ClusterError if it does not accept this user's token.

    Ray itself tries a refused token again and again, for 20 to 30 s, and then says only that it could not connect.
    """
    if grpc is None:
        return False
    scheme, _, place = address.rpartition("://")
    token = find_token() if os.environ.get("RAY_AUTH_MODE", "").lower() == "token" else ""
    metadata = [("authorization", f"Bearer {token}")] if token else []
    with grpc.insecure_channel(place, options=[("grpc.enable_http_proxy", 0)]) as channel:
        try:
            channel.unary_unary(_KNOCKS[scheme])(b"", metadata=metadata, timeout=KNOCK_SECONDS)
        except grpc.RpcError as error:  # what a server makes of an empty question does not matter: it let us in
            if error.code() is grpc.StatusCode.UNAUTHENTICATED:
                raise refused(address) from error
            return error.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
    return True


def refused(address: str) -> ClusterError:
    """Return the error for a cluster that does not let this user in."""
    return ClusterError(f"the Ray cluster at {address} does not let you in", where=address, hint=token_hint())


def _is_here(address: str) -> bool:
    _, host, port = split_cluster(address)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return any(_is_mine(str(each[4][0])) for each in found)


def _is_mine(ip: str) -> bool:
    own = {each.address.partition("%")[0] for addresses in psutil.net_if_addrs().values() for each in addresses}
    return ip in own or ip.startswith("127.") or ip == "::1"


@contextlib.contextmanager
def _own_process_groups() -> Iterator[None]:
    """Let what Ray starts meanwhile lead process groups of its own.

    A signal to the group of this process (`timeout`, a shell's `kill %1`) would end the cluster before the run has
    stopped in order. It still ends with this process: Ray ties each to the life of its parent.
    """
    _register_once()
    _embedding.set()
    try:
        yield
    finally:
        _embedding.clear()


@functools.cache
def _register_once() -> None:
    os.register_at_fork(after_in_child=lambda: os.setpgid(0, 0) if _embedding.is_set() else None)


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Keep this process's own answer to SIGTERM, and let a terminal that closes not end the cluster.

    Ray puts a handler of SIGTERM in place that exits at once. Its processes share the terminal with this one, and what
    is ignored when they start is ignored by them: a run that is told to stop still needs them.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    terminate, hangup = signal.getsignal(signal.SIGTERM), signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, terminate)
        signal.signal(signal.SIGHUP, hangup)
