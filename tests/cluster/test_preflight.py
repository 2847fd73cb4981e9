"""A cluster of two nodes is asked before a run; a third that differs, a frozen one and an autoscaler are told apart."""

import importlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest
from ray.experimental.internal_kv import _internal_kv_get

from marin.base.errors import ClusterError
from marin.cli.app import call
from marin.run import api
from marin.run.backends.ray import RayBackend
from marin.run.backends.ray_preflight import AUTOSCALER_STATUS, ask_nodes
from marin.run.preflight import Needs
from marin.store import EventReader, Store

MODULE = '''
import time
from pathlib import Path
from marin import Context, Folder, Shard, Step, Value
from marin.base.config import Placement


class Waits(Step[Folder]):
    """Ends once a file called `gate` appears."""

    label: str
    gate: Placement[str]

    def run(self, ctx: Context) -> Folder:
        while not Path(self.gate).exists():
            time.sleep(0.05)
        return Folder.write(ctx.output)


class Counts(Step[Value[int]]):
    def run(self, ctx: Context) -> Value[int]:
        return Value.write(ctx.output, len(ctx.map(one, [Shard("0", digest="0")])))


def one(shard: Shard) -> int:
    return 1


class Ranks(Step[Folder]):
    def run(self, ctx: Context) -> Folder:
        ctx.gang(len, rendezvous=len)
        return Folder.write(ctx.output)
'''
START = ["--block", "--object-store-memory=100000000", "--disable-usage-stats"]
RAY = str(Path(sys.executable).with_name("ray"))
HEAD = "f" * 51 + "00000"
NODE_TYPES = {
    "cluster_name": "fake",
    "max_workers": 2,
    "idle_timeout_minutes": 5,
    "provider": {"type": "fake_multinode"},
    "head_node_type": "head",
    "available_node_types": {
        "head": {"resources": {"CPU": 2}, "node_config": {}, "max_workers": 0},
        "gpu": {"resources": {"CPU": 4, "GPU": 2}, "node_config": {}, "min_workers": 0, "max_workers": 2},
    },
    **{name: {} for name in ("auth", "file_mounts", "head_node", "worker_nodes")},
    **{
        name: []
        for name in (
            *("setup_commands", "head_setup_commands", "worker_setup_commands", "initialization_commands"),
            *("head_start_ray_commands", "worker_start_ray_commands", "rsync_exclude", "rsync_filter"),
            "cluster_synced_files",
        )
    },
    "file_mounts_sync_continuously": False,
    "upscaling_speed": 1,
}
BINDING = 'mount --bind "$1" "$2" && mount -t tmpfs none "$3" && shift 3 && exec "$@"'


class Place(NamedTuple):
    """A cluster, the folder of its code and a store that its nodes share."""

    address: str
    code: Path
    store: str
    node: psutil.Process


@contextmanager
def process(command: Sequence[str], log: Path, environment: dict[str, str] | None = None) -> Iterator[psutil.Process]:
    """Start `ray start --block` and wait until its node is up; end it and all it has started."""
    with log.open("w") as output:
        started = subprocess.Popen(
            command,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env={**os.environ, **(environment or {})},
        )
    try:
        until(lambda: "Ray runtime started" in log.read_text() or started.poll() is not None, seconds=60)
        assert started.poll() is None, log.read_text()
        yield psutil.Process(started.pid)
    finally:
        end(started)


def end(started: subprocess.Popen[bytes]) -> None:
    if started.poll() is None:
        family = psutil.Process(started.pid).children(recursive=True)
        os.killpg(started.pid, signal.SIGKILL)
        started.wait()
        for each in family:
            if each.is_running():
                each.kill()


def until(happened: Callable[[], object], *, seconds: float) -> None:
    pause, ends = threading.Event(), time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < ends
        pause.wait(0.1)


def head_command(port: int, folder: Path, *more: str) -> list[str]:
    own = ["--head", f"--port={port}", "--node-ip-address=127.0.0.1", f"--temp-dir={folder}", "--num-cpus=2"]
    own.append("--include-dashboard=false")
    return [RAY, "start", *own, *START, *more]


def node_command(address: str) -> list[str]:
    return [RAY, "start", f"--address={address}", "--node-ip-address=127.0.0.1", "--num-cpus=1", *START]


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.fixture(scope="module")
def short() -> Iterator[Path]:
    """A folder whose name is short enough for Unix sockets."""
    folder = Path(tempfile.mkdtemp(prefix="mpf-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def code(short: Path) -> Iterator[Path]:
    """The folder of the steps, importable here."""
    folder = short / "code"
    folder.mkdir()
    (folder / "preflight_steps.py").write_text(MODULE)
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))


@pytest.fixture(scope="module")
def place(short: Path, code: Path) -> Iterator[Place]:
    store = Store.open(str(short / "store"), write=True)
    port = free_port()
    address = f"127.0.0.1:{port}"
    with ExitStack() as stack:
        stack.enter_context(process(head_command(port, short / "r"), short / "head.log"))
        node = stack.enter_context(process(node_command(address), short / "node.log"))
        yield Place(address, code, store.url, node)


@pytest.fixture
def backend(place: Place) -> Iterator[RayBackend]:
    opened = RayBackend(place.address)
    opened.start([str(place.code), *api.code_folders()], "run-1")
    yield opened
    opened.close()


def steps() -> Any:  # Any: the module written above
    return importlib.import_module("preflight_steps")


def test_preflight_equal_nodes_find_nothing_and_leave_nothing_in_the_store(place, backend):
    warnings = backend.preflight([steps().Ranks().on(ranks=3)], place.store)
    assert [line for line in warnings if "free for temporary files" not in line] == []
    first, second = backend.examine(place.store)
    assert first.name != second.name
    assert first.facts.python == second.facts.python == ".".join(map(str, sys.version_info[:3]))
    assert max(abs(node.facts.skew_seconds) for node in (first, second)) < 1
    assert not list(Path(place.store).glob(".probe-*"))


def test_preflight_frozen_node_is_named_and_the_others_are_enough(place, backend):
    raylet = next(each for each in place.node.children(recursive=True) if each.name() == "raylet")
    raylet.suspend()
    try:
        nodes = ask_nodes(Needs(place.store), {}, seconds=3)
    finally:
        raylet.resume()
    assert sorted((node.silent, "has not answered for 3 s" in node.problem) for node in nodes) == [
        (False, False),
        (True, True),
    ]


def test_steps_and_shards_that_wait_for_cpus_say_so_in_status(place, tmp_path, capfd):
    module, gate, store = steps(), tmp_path / "gate", str(tmp_path / "store")
    wanted = [module.Waits(label=label, gate=str(gate)).on(cpus=2).named(label) for label in ("one", "two")]
    wanted.append(module.Counts().on(cpus=2).named("map"))
    results: list[object] = []
    thread = threading.Thread(target=lambda: results.append(api.run(wanted, store=store, address=place.address)))
    thread.start()
    try:
        until(
            lambda: len({each["name"] for each in all_events(store) if "CPUs" in each.get("detail", "")}) == 2,
            seconds=30,
        )
        assert call(["status", "--store", store, "--json"]) == 0
        rows = {row["name"]: row for row in json.loads(capfd.readouterr().out)["steps"]}
    finally:
        gate.touch()
        thread.join(timeout=30)
    assert rows["map"]["state"] == "waiting"
    assert re.fullmatch(r"shards are waiting for 2 CPUs: cluster has . of 3 CPUs free", rows["map"]["detail"])
    (waiting,) = (row["detail"] for name, row in rows.items() if name != "map" and row["state"] == "waiting")
    assert re.fullmatch(r"waiting for 2 CPUs: cluster has . of 3 CPUs free", waiting)
    assert len(results) == 1


def all_events(store: str) -> list[dict[str, Any]]:  # Any: JSON
    opened = Store.open(store, write=False)
    runs = opened.runs() if opened.exists() else []
    return EventReader(opened.url, runs[0]).poll() if runs else []


def test_preflight_node_with_other_code_torch_and_store_is_refused_by_name(place, short, tmp_path, capfd):
    if subprocess.run(["unshare", "--mount", "true"], check=False, capture_output=True).returncode:
        pytest.skip("mount namespaces are not allowed here")
    other = tmp_path / "other"
    (other / "torch-9.9.0.dist-info").mkdir(parents=True)
    (other / "torch-9.9.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 9.9.0\n")
    (other / "preflight_steps.py").write_text(MODULE + "\nEDITED = True\n")
    unshared = ["unshare", "--mount", "sh", "-c", BINDING, "sh", str(other), str(place.code), place.store]
    with process([*unshared, *node_command(place.address)], short / "odd.log"):
        with pytest.raises(ClusterError) as raised:
            api.run(steps().Ranks().on(ranks=3), store=place.store, address=place.address)
        capfd.readouterr()
        code = call(["doctor", "--address", place.address, "--store", place.store, "--json"])
    assert raised.value.what.startswith("1 of 3 nodes cannot take part: ")
    for words in ("another module preflight_steps than here", "torch 9.9.0, on most nodes", "sees another store"):
        assert words in raised.value.what
    assert "one image" in raised.value.hint
    checks = json.loads(capfd.readouterr().out)["checks"]
    assert code == 3
    assert {check["name"] for check in checks if not check["ok"]} == {"torch", "store"}
    assert len({check["node"] for check in checks} - {""}) == 3
    assert "3 nodes" in next(check["found"] for check in checks if check["name"] == "cluster")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["plain", "autoscaled"])
def test_request_that_no_node_meets_waits_where_an_autoscaler_is_on(kind, short, code, tmp_path):
    port, more, environment = free_port(), [], {}
    if kind == "autoscaled":
        (tmp_path / "types.json").write_text(json.dumps(NODE_TYPES))
        more = [f"--autoscaling-config={tmp_path / 'types.json'}"]
        environment = {"RAY_FAKE_CLUSTER": "1", "RAY_OVERRIDE_NODE_ID_FOR_TESTING": HEAD}
    with process(head_command(port, short / kind, *more), short / f"{kind}.log", environment):
        opened = RayBackend(f"127.0.0.1:{port}")
        opened.start(api.code_folders(), "run-1")
        try:
            until(cluster_says_something, seconds=20)
            step = steps().Waits(label="x", gate="y").on(gpus=2)
            if kind == "autoscaled":
                opened.check("x", step)
            else:
                with pytest.raises(ClusterError, match="can never give"):
                    opened.check("x", step)
        finally:
            opened.close()


def cluster_says_something() -> bool:
    return _internal_kv_get(AUTOSCALER_STATUS.encode()) is not None
