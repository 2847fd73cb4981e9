"""Several drivers over one storage that misbehaves, under virtual clocks: no interleaving breaks an invariant.

The drivers are the real Store, Leases, Heartbeat and ShardCache, each with its own client of `fault://` and its own
clock, up to ten minutes away from the others. The invariants are those of design 2; each is asserted where it could
break, and `teardown` asserts that nothing is left behind that would need an unlock.
"""

import itertools
from dataclasses import dataclass, field

import pytest
from fault_results import STEP, attempted
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from marin import fs
from marin.base.errors import StoreError
from marin.store import Commit, Heartbeat, Holder, Lease, Leases, Manifest, Store, manifest
from marin.store.heartbeat import FENCE_SECONDS, INTERVAL_SECONDS
from marin.store.lease import TTL_SECONDS
from marin.testing import Clock, Clocks, Crash, FaultyStorage, Rule

KEYS = ("ab" * 32, "cd" * 32)
SHARD = "ef" * 32
SHARD_RECORD = f"store/shards/{SHARD[:2]}/{SHARD}/manifest.json"
names = itertools.count()

MISHAPS = {
    "none": (),
    "lost once": (Rule("lost", first=1),),
    "every answer lost": (Rule("lost"),),
    "create lost": (Rule("lost", operation="create", first=1),),
    "create lost, then no answer": (Rule("lost", operation="create"), Rule("timeout", operation="read")),
    "409": (Rule("409", operation="create", first=2),),
    "412": (Rule("412", operation="create", first=1),),
    "412, then no answer": (Rule("412", operation="create"), Rule("timeout", operation="read")),
    "503 twice": (Rule("503", first=2),),
    "503 for ever": (Rule("503"),),
    "denied": (Rule("denied", operation="create"),),
    "record flipped on its way": (Rule("flip", operation="read", first=1),),
    "second read flipped on its way": (Rule("flip", operation="read", nth=2),),
    "record cut on its way": (Rule("cut", operation="read", first=1),),
    "crash before the create": (Rule("crash-before", operation="create"),),
    "crash after the create": (Rule("crash-after", operation="create"),),
    "crash at the second call": (Rule("crash-before", nth=2),),
    "crash after the third call": (Rule("crash-after", nth=3),),
}
# Most calls go well, or no history would come far.
mishaps = st.sampled_from(["none"] * len(MISHAPS) + list(MISHAPS))
keys = st.sampled_from([KEYS[0], *KEYS])
pauses = st.sampled_from([0, 0, 0, 0, 20, 100])
# Correctness must not depend on the lease: now and then a driver works without one.
ways = st.sampled_from(["as planned", "other bytes", "heedless"])


@dataclass
class Driver:
    """One run: its clients of the store, and what it believes."""

    name: str
    clock: Clock
    store: Store
    leases: Leases
    heartbeat: Heartbeat
    held: dict[str, Lease] = field(default_factory=dict)
    written: dict[str, Manifest] = field(default_factory=dict)
    ended: dict[str, Commit] = field(default_factory=dict)
    attempts: int = 0
    frozen: bool = False
    cut_off: bool = False


class Drivers(RuleBasedStateMachine):
    """Three drivers at a time; one that crashes is followed by another."""

    @initialize(skews=st.tuples(*[st.integers(-600, 600)] * 3))
    def begin(self, skews: tuple[int, ...]) -> None:
        self.clocks = Clocks()
        self.storage = FaultyStorage.memory(f"lab{next(names)}", sleep=self.clocks.true.sleep)
        Store.open(self.storage.url("store"), write=True)
        self.committed: dict[str, bytes] = {}
        self.digests: dict[str, set[str]] = {key: set() for key in KEYS}
        self.shard_digests: set[str] = set()
        self.beats: dict[str, tuple[bytes, float]] = {}
        self.all: list[Driver] = []
        self.drivers: list[Driver] = [self.new_driver(skew) for skew in skews]

    # Drivers

    def new_driver(self, skew: float) -> Driver:
        name = f"run-{len(self.all)}"
        clock = self.clocks.driver(skew=skew)
        store = Store(self.storage.url("store", client=name))
        leases, heartbeat = Leases(store, name, clock=clock), Heartbeat(store, name, clock=clock)
        driver = Driver(name, clock, store, leases, heartbeat)
        heartbeat.beat()
        self.all.append(driver)
        self.note_beats()
        return driver

    def driver(self, index: int) -> Driver | None:
        """Return a driver that can act now."""
        driver = self.drivers[index]
        return None if driver.frozen else driver

    def under(self, driver: Driver, mishap: str) -> tuple[Rule, ...]:
        rules = MISHAPS[mishap] if not driver.cut_off else (Rule("timeout", client=driver.name),)
        self.storage.rules = rules
        return rules

    def died(self, driver: Driver) -> None:
        """Replace a driver whose process ended in the middle of a call."""
        self.storage.rules = ()
        self.storage.crash(driver.name)
        self.drivers[self.drivers.index(driver)] = self.new_driver(driver.clock() - self.clocks.true())

    def note_beats(self) -> None:
        for driver in self.all:
            beat = self.stored(f"store/runs/{driver.name}/heartbeat.json")
            if beat is not None and self.beats.get(driver.name, (None, 0.0))[0] != beat:
                self.beats[driver.name] = (beat, self.clocks.true())

    def stored(self, path: str) -> bytes | None:
        try:
            return self.storage.objects.get(path)
        except FileNotFoundError:
            return None

    # What drivers do

    @rule(turns=st.lists(st.tuples(pauses, st.integers(0, 2), keys, ways, mishaps), min_size=3, max_size=12))
    def go_on(self, turns: list[tuple[int, int, str, str, str]]) -> None:
        for pause, *turn in turns:
            self.pass_time(pause)
            self.take_turn(*turn)

    def take_turn(self, index: int, key: str, way: str, mishap: str) -> None:
        """Do what comes next: take the lease, write, commit, give the lease back."""
        driver = self.driver(index)
        if driver is None:
            return
        if key not in driver.held and way != "heedless":
            self.acquire(driver, key, mishap)
        elif key not in driver.written:
            self.write(driver, key, other_bytes=way != "as planned")
        elif key not in driver.ended:
            self.commit(driver, key, mishap)
        else:
            self.release(driver, key, mishap)

    def acquire(self, driver: Driver, key: str, mishap: str) -> None:
        self.under(driver, mishap)
        try:
            taken = driver.leases.acquire(STEP, key)
        except StoreError:
            return
        except Crash:
            self.died(driver)
            return
        finally:
            self.storage.rules = ()
        if isinstance(taken, Lease):
            driver.held[key] = taken
            self.check_takeover(driver, key, taken.epoch)
        else:
            assert taken.run != driver.name, "a driver waits for itself"

    def check_takeover(self, driver: Driver, key: str, epoch: int) -> None:
        """Whoever held the lease before had given it back, or had been silent for the whole ttl."""
        folder = f"store/artifacts/{STEP}/{key[:16]}/leases"
        if epoch == 1 or self.stored(f"{folder}/{epoch - 1}.released.json") is not None:
            return
        others = [other for other in self.all if other is not driver and other.held.get(key)]
        for other in others:
            if other.held[key].epoch == epoch - 1 and other in self.drivers:
                silent = self.clocks.true() - self.beats[other.name][1]
                assert silent >= TTL_SECONDS, f"{other.name} beat {silent} s ago and was declared dead"
                assert other.frozen or other.heartbeat.fenced, f"{other.name} does not know that it may be replaced"

    @rule(index=st.integers(0, 2), mishap=mishaps)
    def beat(self, index: int, mishap: str) -> None:
        if driver := self.driver(index):
            self.under(driver, mishap)
            self.try_beat(driver)

    def try_beat(self, driver: Driver) -> None:
        try:
            driver.heartbeat.beat()
        except StoreError:
            pass
        except Crash:
            self.died(driver)
        finally:
            self.storage.rules = ()
        self.note_beats()

    def write(self, driver: Driver, key: str, other_bytes: bool) -> None:
        if driver.cut_off:
            return
        driver.attempts += 1
        attempt = f"{driver.name}-{driver.attempts}"
        data = attempt.encode() if other_bytes else b"tokens"
        at = f"{driver.clock():.0f}"
        driver.written[key] = attempted(driver.store, key, attempt, data, at=at)

    def commit(self, driver: Driver, key: str, mishap: str) -> None:
        self.under(driver, mishap)
        try:
            ended = driver.store.commit(driver.written[key])
        except StoreError:
            ended = None
        except Crash:
            self.died(driver)
            return
        finally:
            self.storage.rules = ()
        self.after_commit(driver, key, ended)

    def after_commit(self, driver: Driver, key: str, ended: Commit | None) -> None:
        mine, stored = driver.written[key], self.stored_manifest(key)
        if ended is None:
            # No answer at all. If mine is there, asking again must say so: a success stays one.
            if stored is not None and stored.attempt == mine.attempt and not driver.cut_off:
                ended = driver.store.commit(mine)
                assert ended.outcome == "committed"
            else:
                return
        assert ended.manifest == stored, "what a driver was told differs from what stands in the store"
        assert (ended.outcome == "committed") == (stored.attempt == mine.attempt)
        assert (ended.outcome == "adopted") == (stored.digest != mine.digest)
        driver.ended[key] = ended
        self.digests[key].add(ended.manifest.digest)

    @rule(index=st.integers(0, 2), other_bytes=st.booleans(), mishap=mishaps)
    def commit_shard(self, index: int, other_bytes: bool, mishap: str) -> None:
        driver = self.driver(index)
        if driver is None or driver.cut_off:
            return
        output = driver.store.shards.output(SHARD, driver.name)
        output.write("part", driver.name.encode() if other_bytes else b"part")
        self.under(driver, mishap)
        try:
            shard = driver.store.shards.commit(SHARD, "0000", output, None)
        except StoreError:
            return
        except Crash:
            self.died(driver)
            return
        finally:
            self.storage.rules = ()
        self.shard_digests.add(shard.digest)
        assert Store(self.storage.url("store")).shards.get(SHARD).digest == shard.digest

    @rule(index=st.integers(0, 2), key=keys, mishap=mishaps)
    def give_up(self, index: int, key: str, mishap: str) -> None:
        """Let a lease go before the work is done, as a failed step does."""
        driver = self.driver(index)
        if driver is not None and key in driver.held:
            self.release(driver, key, mishap)

    def release(self, driver: Driver, key: str, mishap: str) -> None:
        """Give a lease back; whether the store answers or not, that is no error."""
        driver.written.pop(key, None)
        driver.ended.pop(key, None)
        if key not in driver.held:
            return
        lease = driver.held.pop(key)
        self.under(driver, mishap)
        try:
            driver.leases.release(lease)
        except Crash:
            self.died(driver)
        finally:
            self.storage.rules = ()

    # What happens to drivers

    @rule(index=st.sampled_from([None, None, None, None, 0, 1, 2]))
    def crash(self, index: int | None) -> None:
        if index is not None:
            self.died(self.drivers[index])

    @rule(index=st.integers(0, 2))
    def freeze(self, index: int) -> None:
        self.drivers[index].frozen = True

    @rule(index=st.integers(0, 2))
    def resume(self, index: int) -> None:
        self.drivers[index].frozen = False

    @rule(index=st.integers(0, 2))
    def cut_off_or_reconnect(self, index: int) -> None:
        self.drivers[index].cut_off = not self.drivers[index].cut_off

    @rule(seconds=st.sampled_from([1, 19, 61, 100, 3 * int(TTL_SECONDS)]))
    def pass_time(self, seconds: int) -> None:
        """Whoever is neither frozen nor cut off beats meanwhile."""
        while seconds > 0:
            part = min(seconds, int(INTERVAL_SECONDS))
            self.clocks.advance(part)
            seconds -= part
            for driver in list(self.drivers):
                if not driver.frozen:
                    self.under(driver, "none")
                    self.try_beat(driver)
        for driver in self.drivers:
            silent = self.clocks.true() - self.beats[driver.name][1]
            assert driver.heartbeat.fenced or silent <= FENCE_SECONDS

    @precondition(lambda self: any(not driver.frozen and not driver.cut_off for driver in self.drivers))
    @rule(key=keys)
    def wait_for_the_lease(self, key: str) -> None:
        """A waiter that polls gets a dead run's lease within the ttl, and never a live run's."""
        waiter = next(driver for driver in self.drivers if not driver.frozen and not driver.cut_off)
        if key in waiter.held:
            return
        for _ in range(int(TTL_SECONDS / INTERVAL_SECONDS) + 2):
            taken = waiter.leases.acquire(STEP, key)
            if isinstance(taken, Lease):
                waiter.held[key] = taken
                self.check_takeover(waiter, key, taken.epoch)
                return
            self.pass_time(int(INTERVAL_SECONDS))
        assert isinstance(taken, Holder)
        holder = next(driver for driver in self.drivers if driver.name == taken.run)
        assert not holder.frozen, f"{holder.name} is frozen and keeps its lease"
        assert not holder.cut_off, f"{holder.name} cannot beat and keeps its lease"

    # What must hold

    def stored_manifest(self, key: str) -> Manifest | None:
        data = self.stored(f"store/artifacts/{STEP}/{key[:16]}/manifest.json")
        return None if data is None else manifest.decode(data, where=key)

    @invariant()
    def what_is_committed_never_changes_and_is_whole(self) -> None:
        if not hasattr(self, "storage"):
            return
        paths = {f"store/artifacts/{STEP}/{key[:16]}/manifest.json": key for key in KEYS}
        for path in (*paths, SHARD_RECORD):
            data = self.stored(path)
            assert path not in self.committed or self.committed[path] == data, f"{path} has changed"
            if data is not None and path not in self.committed:
                self.committed[path] = data
                found = manifest.decode(data, where=path) if path in paths else True
                assert found is not None, f"{path} is torn"
        for path in self.storage.objects.below("store"):
            assert path.count("manifest.json") == 0 or path in (*paths, SHARD_RECORD)

    @invariant()
    def all_who_finished_agree(self) -> None:
        if hasattr(self, "storage"):
            assert all(len(digests) <= 1 for digests in self.digests.values())
            assert len(self.shard_digests) <= 1

    @invariant()
    def a_reader_sees_what_was_committed(self) -> None:
        if hasattr(self, "storage"):
            found = Store(self.storage.url("store")).find([(STEP, key) for key in KEYS])
            for key in KEYS:
                assert found.get(key) == self.stored_manifest(key)

    def teardown(self) -> None:
        """Whatever happened, and though everybody has died: a new driver gets every lease and finishes."""
        if not hasattr(self, "storage"):
            return
        self.storage.rules = ()
        last = self.new_driver(0.0)
        for driver in self.drivers:
            self.storage.crash(driver.name)
        waiting = set(KEYS)
        for _ in range(int(TTL_SECONDS / INTERVAL_SECONDS) + 2):
            waiting = {key for key in waiting if not isinstance(last.leases.acquire(STEP, key), Lease)}
            self.clocks.advance(INTERVAL_SECONDS)
        assert not waiting, "a lease that nobody holds is not to be had"
        for key in KEYS:
            before = self.stored_manifest(key)
            ended = last.store.commit(attempted(last.store, key, "last", b"tokens"))
            assert before is None or ended.manifest == before
        assert fs.list_folder(fs.join(last.store.url, "artifacts", STEP)) == sorted(key[:16] for key in KEYS)


class TestDrivers(Drivers.TestCase):
    """Quick: some histories; what hypothesis finds, it keeps and shrinks."""

    settings = settings(max_examples=150, stateful_step_count=30, suppress_health_check=list(HealthCheck))


@pytest.mark.slow
class TestDriversLong(Drivers.TestCase):
    """Many long histories."""

    settings = settings(max_examples=1000, stateful_step_count=60, suppress_health_check=list(HealthCheck))
