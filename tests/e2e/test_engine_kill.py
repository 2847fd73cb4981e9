"""Drivers that are killed, interrupted, doubled or sent to a dead address; each in a process of its own."""

import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import psutil
import pytest

from marin import fs
from marin.run import api
from marin.store import EventReader, Store

MODULES = str(Path(__file__).parent / "modules")
LIMIT_SECONDS = 60

DRIVER = """
import json, sys
import engine_steps as steps
from marin.run import api

target, store, backend, address = sys.argv[1:]
wanted = [eval(target, vars(steps))]
try:
    result = api.run_plan(api.plan(wanted, store=store), store=store, backend=backend, address=address or None)
    print(json.dumps({**result.to_json(), "ray": "ray" in sys.modules, "torch": "torch" in sys.modules}))
except Exception as error:
    print(json.dumps({"error": type(error).__name__, "what": error.what, "hint": error.hint}))
"""


@pytest.fixture(scope="module")
def steps() -> ModuleType:
    if MODULES not in sys.path:
        sys.path.insert(0, MODULES)
    return importlib.import_module("engine_steps")


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start drivers; those still running at the end are ended with all that they started."""
    started: list[subprocess.Popen[str]] = []

    def run(target: str, store: Path, backend: str = "ray", address: str = "") -> subprocess.Popen[str]:
        environment = {**os.environ, "PYTHONPATH": MODULES}
        command = [sys.executable, "-c", DRIVER, target, str(store), backend, address]
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        started.append(process)
        return process

    yield run
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + LIMIT_SECONDS
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, f"not within {LIMIT_SECONDS} s: {what}"
        pause.wait(0.05)


def _outcome(process: subprocess.Popen[str]) -> dict:
    out, error = process.communicate(timeout=LIMIT_SECONDS)
    lines = out.strip().splitlines()
    assert len(lines) == 1, f"more than one line on stdout: {out}\n{error}"
    return json.loads(lines[0])


def _descendants(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """Return what a driver has started; Ray's two small agents notice a lost cluster only after a minute."""
    family = psutil.Process(process.pid).children(recursive=True)
    return [each for each in family if "Agent" not in _command(each)]


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


def _gone(processes: list[psutil.Process]) -> bool:
    return not any(_lives(each) for each in processes)


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # it ended between the two questions
        return False


def test_kill_driver_in_a_map_ends_its_cluster_and_the_rerun_reuses_shards(steps, start, tmp_path):
    store, target = tmp_path / "store", f"Squares(n=12, folder={str(tmp_path)!r}, trouble='gate:11')"
    driver = start(target, store)
    _until(lambda: steps.counted(tmp_path, "0011") == 1, "the last shard is reached")
    _until(lambda: len(list(store.glob("shards/*/*/manifest.json"))) == 11, "the others are committed")
    family = _descendants(driver)
    assert any("raylet" in each.name() for each in family)
    os.kill(driver.pid, signal.SIGKILL)
    driver.wait()
    _until(lambda: _gone(family), "raylet and workers end with the driver")
    (tmp_path / "gate").touch()
    again = _outcome(start(target, store, "inline"))
    assert again["state"] == "done"
    assert again["steps"][0]["shards"] == {"total": 12, "reused": 11, "computed": 1}
    assert [steps.counted(tmp_path, f"{i:04d}") for i in range(12)] == [1] * 11 + [2]


def test_interrupt_stops_cleanly_and_leaves_no_lease_and_no_process(steps, start, tmp_path):
    store = tmp_path / "store"
    driver = start(f"Waits(folder={str(tmp_path)!r})", store)
    _until(lambda: steps.counted(tmp_path, "waits") == 1, "the step runs")
    family = _descendants(driver)
    os.killpg(driver.pid, signal.SIGINT)  # as Ctrl-C in a terminal does
    outcome = _outcome(driver)
    assert (outcome["state"], outcome["steps"][0]["state"]) == ("stopped", "stopped")
    _until(lambda: _gone(family), "everything ends")
    leases = sorted(entry.path.rsplit("/", 1)[-1] for entry in fs.list_files(str(store)) if "/leases/" in entry.path)
    assert leases == ["1.json", "1.released.json"]
    assert Store.open(str(store), write=False).read_run(outcome["run"])["state"] == "stopped"


@pytest.fixture
def waiting(tmp_path) -> Iterator[subprocess.Popen[str]]:
    """`marin run` on an embedded cluster, by a user's shell: a process group of its own."""
    (tmp_path / "pipeline.py").write_text(f"""
import engine_steps
from marin import pipeline

@pipeline
def waits():
    return [engine_steps.Waits(folder={str(tmp_path)!r})]
""")
    command = [sys.executable, "-m", "marin", "run", str(tmp_path / "pipeline.py"), "--store", f"{tmp_path}/store"]
    environment = {**os.environ, "PYTHONPATH": MODULES}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True, process_group=0) as process:
        yield process
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


def test_run_whose_process_group_is_told_to_end_stops_in_order(steps, waiting, tmp_path):
    _until(lambda: steps.counted(tmp_path, "waits") == 1, "the step runs")
    family = _descendants(waiting)
    os.killpg(waiting.pid, signal.SIGTERM)  # as `timeout` does, and a shell's `kill %1`
    _, err = waiting.communicate(timeout=LIMIT_SECONDS)
    assert waiting.returncode == 130
    assert "stopping: what is finished is kept" in err
    assert "error:" not in err
    _until(lambda: _gone(family), "everything ends")


def test_rerun_of_a_finished_run_imports_neither_ray_nor_torch(steps, start, tmp_path):
    store = tmp_path / "store"
    total = steps.Total(squares=steps.Squares(n=3, folder=str(tmp_path)))
    api.run(total, store=store, backend="inline")
    outcome = _outcome(start(f"Total(squares=Squares(n=3, folder={str(tmp_path)!r}))", store))
    assert [step["state"] for step in outcome["steps"]] == ["cached", "cached"]
    assert (outcome["ray"], outcome["torch"]) == (False, False)


def test_two_drivers_at_once_do_each_step_once(steps, start, tmp_path):
    store, target = tmp_path / "store", f"Waits(folder={str(tmp_path)!r})"
    drivers = [start(target, store, "inline") for _ in range(2)]
    _until(lambda: len(list(store.glob("runs/*/run.json"))) == 2, "both run")
    readers = [EventReader(str(store), run.name) for run in (store / "runs").iterdir()]
    details = []

    def one_waits() -> bool:
        details.extend(str(event.get("detail")) for reader in readers for event in reader.poll())
        return any("makes it since" in detail for detail in details)

    _until(one_waits, "one waits for the other")
    (tmp_path / "gate").touch()
    outcomes = [_outcome(driver) for driver in drivers]
    assert sorted(outcome["steps"][0]["state"] for outcome in outcomes) == ["cached", "done"]
    assert steps.counted(tmp_path, "waits") == 1


def test_run_against_a_killed_holder_goes_on_at_once(steps, start, tmp_path):
    store, target = tmp_path / "store", f"Waits(folder={str(tmp_path)!r})"
    holder = start(target, store, "inline")
    _until(lambda: steps.counted(tmp_path, "waits") == 1, "the holder works")
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    (tmp_path / "gate").touch()
    assert _outcome(start(target, store, "inline"))["state"] == "done"


@pytest.mark.parametrize("listens", [False, True])
def test_dead_address_is_an_error_within_twenty_seconds(steps, start, tmp_path, listens):
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        if listens:
            server.listen()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        started = time.monotonic()
        outcome = _outcome(start(f"Waits(folder={str(tmp_path)!r})", tmp_path / "store", "ray", address))
    assert outcome["error"] == "ClusterError"
    assert address in outcome["what"]
    assert time.monotonic() - started < 25  # imports of a fresh process included
