"""Whether a run lives, for one look and for a watcher, on its machine and from elsewhere."""

import time
from pathlib import Path

import pytest

from marin import fs
from marin.store import Heartbeat, Store, records
from marin.testing.clock import Clock
from marin.view.liveness import SILENT_SECONDS, SKEW_SECONDS, Pulse, run_state

RUNNING = {"state": "running"}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(str(tmp_path / "store"), write=True)


def beat(store: Store, number: int, *, machine: str = "another", pid: int = 1) -> None:
    """Write a heartbeat as a driver of another machine does."""
    process = {"host": "gpu-07", "machine": machine, "pid": pid, "started": "1"}
    url = fs.join(store.url, "runs", "run-1", "heartbeat.json")
    fs.replace(url, records.encode("heartbeat", {"beat": number, "process": process}))


def test_run_that_has_not_begun_waits(store):
    assert run_state(store, "run-1", None) == "waiting"
    assert Pulse(store, "run-1").state(None) == "waiting"


@pytest.mark.parametrize("state", ["done", "failed", "stopped"])
def test_run_that_said_how_it_ended_is_believed(store, state):
    beat(store, 1)
    assert run_state(store, "run-1", {"state": state}, now=time.time() + 1e6) == state
    assert Pulse(store, "run-1").state({"state": state}) == state


def test_run_of_this_machine_is_lost_as_soon_as_its_process_is_gone(store):
    heartbeat = Heartbeat(store, "run-1")
    heartbeat.beat()
    assert run_state(store, "run-1", RUNNING) == "running"
    record = records.load(fs.join(store.url, "runs", "run-1", "heartbeat.json"), "heartbeat")
    beat(store, 2, machine=record["process"]["machine"], pid=2**22 + 1)
    assert run_state(store, "run-1", RUNNING) == "lost"
    assert Pulse(store, "run-1").state(RUNNING) == "lost"


def test_run_of_another_machine_is_lost_when_its_heartbeat_is_old_on_any_clock(store):
    beat(store, 1)
    now = time.time()
    assert run_state(store, "run-1", RUNNING, now=now + SILENT_SECONDS) == "running"
    assert run_state(store, "run-1", RUNNING, now=now - 1e6) == "running"
    assert run_state(store, "run-1", RUNNING, now=now + SILENT_SECONDS + SKEW_SECONDS + 5) == "lost"


def test_watcher_counts_on_its_own_clock_from_the_last_beat_that_it_saw(store):
    clock = Clock()
    pulse = Pulse(store, "run-1", clock=clock)
    beat(store, 1)
    assert pulse.state(RUNNING) == "running"
    clock.advance(SILENT_SECONDS - 1)
    beat(store, 2)
    assert pulse.state(RUNNING) == "running"
    clock.advance(SILENT_SECONDS)
    assert pulse.state(RUNNING) == "running"
    clock.advance(2)
    assert pulse.state(RUNNING) == "lost"
    beat(store, 3)
    assert pulse.state(RUNNING) == "running", "it was only slow"


def test_watcher_gives_a_run_without_a_heartbeat_as_long(store):
    clock = Clock()
    pulse = Pulse(store, "run-1", clock=clock)
    clock.advance(10 * SILENT_SECONDS)
    assert pulse.state(None) == "waiting"
    clock.advance(SILENT_SECONDS - 1)
    assert pulse.state(RUNNING) == "running"
    clock.advance(2)
    assert pulse.state(RUNNING) == "lost"
