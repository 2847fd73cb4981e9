"""Who lives: heartbeats through storage errors, processes that are certainly gone, events that wait."""

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from marin import fs
from marin.store import EventReader, EventWriter, Heartbeat, Holder, Lease, Leases, Store
from marin.store.process import certainly_gone, this_process

FINGERPRINT = "ab" * 32


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(str(tmp_path / "store"), write=True)


def wait_until(condition: Callable[[], object]) -> None:
    """Ask again and again, for ten seconds at most."""
    pause = threading.Event()
    for _ in range(2000):
        if condition():
            return
        pause.wait(0.005)
    raise AssertionError("it never became true")


def test_heartbeat_goes_on_after_storage_errors(store: Store, caplog: pytest.LogCaptureFixture):
    url = fs.join(store.url, "runs", "run-1", "heartbeat.json")
    heartbeat = Heartbeat(store, "run-1", interval=0.01)
    heartbeat.start()
    first = fs.read(url)
    folder = Path(store.url, "runs")
    folder.rename(folder.with_name("away"))
    folder.write_text("a file where the folder was")
    wait_until(lambda: "could not be written" in caplog.text)
    folder.unlink()
    wait_until(lambda: fs.exists(url) and fs.read(url) != first)
    heartbeat.stop()


def test_heartbeat_does_not_make_a_store_anew_that_was_moved_away(store: Store, caplog: pytest.LogCaptureFixture):
    store.write_run("run-1", {"run": "run-1"})
    heartbeat = Heartbeat(store, "run-1", interval=0.01)
    heartbeat.start()
    folder = Path(store.url)
    folder.rename(folder.with_name("moved"))
    wait_until(lambda: "was the store moved or deleted?" in caplog.text)
    assert not folder.exists()
    folder.with_name("moved").rename(folder)
    first = fs.read(fs.join(store.url, "runs", "run-1", "heartbeat.json"))
    wait_until(lambda: fs.read(fs.join(store.url, "runs", "run-1", "heartbeat.json")) != first)
    heartbeat.stop()


def test_heartbeat_counts_from_before_a_beat_that_took_long(store: Store):
    times = iter([0.0, 0.0, 61.0])  # made, begun, asked: what a beat took gives no more time
    heartbeat = Heartbeat(store, "run-1", interval=1000, clock=lambda: next(times))
    heartbeat.start()
    heartbeat.stop()
    assert heartbeat.fenced


def started(code: str, *arguments: str) -> tuple[subprocess.Popen[str], str]:
    """Start a process that prints one line and then waits; return it and the line."""
    command = [sys.executable, "-c", f"import sys\n{code}\nsys.stdout.flush()\nsys.stdin.read()", *arguments]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    return child, child.stdout.readline()


def test_process_that_lives_is_not_gone_and_one_that_ended_is():
    assert not certainly_gone(this_process())
    child, line = started(
        "import json; from marin.store.process import this_process\n"
        "sys.stdout.write(json.dumps(this_process()) + '\\n')"
    )
    told = json.loads(line)
    assert not certainly_gone(told)
    child.kill()
    wait_until(lambda: certainly_gone(told))  # a zombie is gone, too
    child.communicate()
    assert certainly_gone(told)


def test_process_of_another_machine_or_time_is_told_apart():
    mine = this_process()
    assert not certainly_gone({**mine, "machine": "another/boot", "pid": 1, "started": "1"})
    assert certainly_gone({**mine, "started": "1"})  # the number was given to another process
    assert not certainly_gone({})


def test_lease_of_a_killed_process_is_taken_at_once(store: Store):
    child, _ = started(
        "from marin.store import Store, Leases\n"
        "Leases(Store.open(sys.argv[1], write=True), 'run-1').acquire('tokenize', sys.argv[2])\n"
        "sys.stdout.write('held\\n')",
        store.url,
        FINGERPRINT,
    )
    waiter = Leases(store, "run-2")
    assert isinstance(waiter.acquire("tokenize", FINGERPRINT), Holder)
    child.kill()
    child.communicate()
    taken = waiter.acquire("tokenize", FINGERPRINT)
    assert isinstance(taken, Lease)
    assert taken.epoch == 2


def test_events_wait_while_the_storage_refuses(store: Store, caplog: pytest.LogCaptureFixture):
    folder = Path(store.url, "runs")
    folder.write_text("a file where the folder belongs")
    writer = EventWriter(store.url, "run-1", "driver", interval=0.01)
    writer.emit("log", line="early")
    wait_until(lambda: "could not be stored" in caplog.text)
    folder.unlink()
    writer.emit("log", line="late")
    writer.close()
    assert [event["line"] for event in EventReader(store.url, "run-1").poll()] == ["early", "late"]


def test_events_with_text_that_is_no_utf8_are_stored(store: Store):
    writer = EventWriter(store.url, "run-1", "driver")
    writer.emit("log", line=b"caf\xe9".decode("utf-8", "surrogateescape"))
    writer.close()
    assert [event["line"] for event in EventReader(store.url, "run-1").poll()] == ["caf?"]
