"""Leases and heartbeats where the storage, the waiter or the holder fails: the cases that a history meets rarely."""

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from fault_results import attempted

from marin.base.errors import StoreError
from marin.store import Heartbeat, Holder, Lease, Leases, Store
from marin.store.lease import TTL_SECONDS
from marin.testing import Clocks, FaultyStorage, Rule

STEP, KEY = "tokenize", "ab" * 32
FOLDER = f"store/artifacts/{STEP}/{KEY[:16]}/leases"


class Scene:
    """A holder and a waiter, each with a client and a clock of its own."""

    def __init__(self) -> None:
        self.storage = FaultyStorage.memory("lease")
        Store.open(self.storage.url("store"), write=True)
        self.clocks = Clocks()
        stores = {name: Store(self.storage.url("store", client=name)) for name in ("holder", "waiter")}
        clocks = {name: self.clocks.driver(skew=skew) for name, skew in (("holder", 600), ("waiter", -600))}
        self.holder, self.waiter = (Leases(stores[name], name, clock=clocks[name]) for name in stores)
        self.heartbeat = Heartbeat(stores["holder"], "holder", clock=clocks["holder"])
        self.heartbeat.beat()


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_lease_that_cannot_be_given_back_is_owed_and_given_back_later(scene: Scene, caplog: pytest.LogCaptureFixture):
    lease = scene.holder.acquire(STEP, KEY)
    assert isinstance(lease, Lease)
    scene.storage.rules = [Rule("503", client="holder")]
    scene.holder.release(lease)
    assert "could not be given back yet" in caplog.text
    scene.storage.rules = ()
    assert isinstance(scene.waiter.acquire(STEP, KEY), Holder)
    scene.holder.acquire("other", "cd" * 32)
    assert isinstance(scene.waiter.acquire(STEP, KEY), Lease)


def test_lease_that_is_owed_is_had_again_by_its_own_run(scene: Scene):
    lease = scene.holder.acquire(STEP, KEY)
    assert isinstance(lease, Lease)
    scene.storage.rules = [Rule("denied", operation="create")]
    scene.holder.release(lease)
    assert scene.holder.acquire(STEP, KEY) == lease
    scene.storage.rules = ()
    assert isinstance(scene.waiter.acquire(STEP, KEY), Holder)
    scene.holder.release(lease)
    assert isinstance(scene.waiter.acquire(STEP, KEY), Lease)


def test_lease_that_was_taken_without_an_answer_is_known_again(scene: Scene):
    scene.storage.rules = [Rule("lost", operation="create"), Rule("timeout", operation="read")]
    with pytest.raises(StoreError):
        scene.holder.acquire(STEP, KEY)
    scene.storage.rules = ()
    assert list(scene.storage.objects.below(FOLDER)) == [f"{FOLDER}/1.json"]
    again = scene.holder.acquire(STEP, KEY)
    assert isinstance(again, Lease)
    assert again.epoch == 1
    assert isinstance(scene.waiter.acquire(STEP, KEY), Holder)


def test_lease_is_not_taken_on_a_record_that_was_damaged_on_its_way(scene: Scene):
    scene.holder.acquire(STEP, KEY)
    for fault in ("flip", "cut"):
        scene.storage.rules = [Rule(fault, path="*/leases/1.json", first=1)]
        assert isinstance(scene.waiter.acquire(STEP, KEY), Holder)


def test_lease_record_without_what_it_should_say_does_not_block(scene: Scene):
    scene.holder.acquire(STEP, KEY)
    record = scene.storage.objects.get(f"{FOLDER}/1.json")
    scene.storage.objects.put(f"{FOLDER}/1.json", record.replace(b'"process"', b'"prozess"'))
    taken = scene.waiter.acquire(STEP, KEY)
    assert isinstance(taken, Lease)
    assert taken.epoch == 2


def test_lease_of_a_live_run_is_safe_from_a_waiter_that_slept_as_long_as_the_holder(scene: Scene):
    scene.holder.acquire(STEP, KEY)
    assert isinstance(scene.waiter.acquire(STEP, KEY), Holder)
    scene.clocks.advance(3 * TTL_SECONDS)  # both are stopped, as with their machine; the waiter wakes first
    assert isinstance(scene.waiter.acquire(STEP, KEY), Holder)
    scene.heartbeat.beat()
    scene.clocks.advance(TTL_SECONDS - 1)
    assert isinstance(scene.waiter.acquire(STEP, KEY), Holder)


def test_lease_of_a_silent_run_is_had_by_a_waiter_that_looks_often(scene: Scene):
    scene.holder.acquire(STEP, KEY)
    taken = []
    for _ in range(int(TTL_SECONDS) // 10 + 1):
        taken.append(scene.waiter.acquire(STEP, KEY))
        scene.clocks.advance(10)
    assert [isinstance(each, Holder) for each in taken[:-1]] == [True] * (len(taken) - 1)
    assert isinstance(taken[-1], Lease)
    assert scene.heartbeat.fenced


def test_lease_goes_on_where_a_listing_is_stale(scene: Scene):
    lease = scene.holder.acquire(STEP, KEY)
    assert isinstance(lease, Lease)
    objects = scene.storage.objects
    real = objects.below
    objects.below = lambda folder: {} if folder == FOLDER else real(folder)  # type: ignore[method-assign]
    taken = scene.waiter.acquire(STEP, KEY)
    assert isinstance(taken, Holder)
    assert taken.epoch == 1


def test_heartbeat_whose_answer_is_lost_gives_no_more_time_than_a_waiter_grants(scene: Scene):
    scene.clocks.advance(59)
    scene.storage.rules = [Rule("lost", operation="put")]
    with pytest.raises(StoreError):
        scene.heartbeat.beat()
    scene.clocks.advance(2)
    assert scene.heartbeat.fenced


TTL = 0.4  # of a waiter in this test; the holder beats eight times as often


def test_process_that_was_stopped_is_replaced_and_its_late_commit_meets_the_winner(tmp_path: Path):
    store = Store.open(str(tmp_path / "store"), write=True)
    script = Path(__file__).parent / "modules" / "fault_holder.py"
    holder = subprocess.Popen(
        [sys.executable, str(script), store.url, KEY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "Lease\n"
    holder.send_signal(signal.SIGSTOP)
    waiter, pause = Leases(store, "waiter", ttl=TTL), threading.Event()
    taken = waiter.acquire(STEP, KEY)
    for _ in range(100):
        if isinstance(taken, Lease):
            break
        pause.wait(TTL / 8)
        taken = waiter.acquire(STEP, KEY)
    assert isinstance(taken, Lease)
    assert store.commit(attempted(store, KEY, "waiter", b"tokens")).outcome == "committed"
    holder.send_signal(signal.SIGCONT)
    out, _ = holder.communicate("go\n", timeout=30)
    assert out == "same\n"
    assert store.find([(STEP, KEY)])[KEY].attempt == "waiter"
    waiter.release(taken)
    assert isinstance(Leases(store, "another").acquire(STEP, KEY), Lease)
