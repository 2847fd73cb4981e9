"""What every store must keep, on each kind of storage: one winner, nothing torn, nothing believed that is damaged."""

import dataclasses
import itertools
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin import fs
from marin.base.errors import ConfigurationError, StoreError
from marin.graph.files import Shard
from marin.store import (
    Commit,
    EventReader,
    EventWriter,
    Heartbeat,
    Holder,
    Lease,
    Leases,
    Manifest,
    Producer,
    Store,
    output_digest,
    unplaced_contents,
)
from marin.store.records import encode

FINGERPRINT = "0123456789abcdef" * 4
Make = Callable[..., Manifest]


@pytest.fixture
def store(root: str) -> Store:
    return Store.open(root, write=True)


def attempted(store: Store, attempt: str, data: bytes = b"tokens", fingerprint: str = FINGERPRINT) -> Manifest:
    """Write one attempt's output and return its manifest."""
    output = store.attempt_output("tokenize", fingerprint, attempt)
    output.write("data.bin", data)
    contents = output.contents(meta={"count": 1})
    recorded = unplaced_contents(store, contents)
    return Manifest(
        fingerprint=fingerprint,
        step="tokenize",
        artifact="Folder",
        artifact_schema=1,
        files=recorded.files,
        shards=recorded.shards,
        meta=recorded.meta,
        digest=output_digest("Folder", 1, contents),
        attempt=attempt,
        epoch=1,
        run="run-1",
        producer=Producer(user="ada"),
        started="2026-01-01T00:00:00+00:00",
        finished="2026-01-01T00:00:01+00:00",
        seconds=1.0,
        resources={},
        metrics={"loss": 1.5},
        recipe=FINGERPRINT,
    )


def manifest_url(store: Store) -> str:
    return fs.join(store.artifact_folder("tokenize", FINGERPRINT), "manifest.json")


def found(store: Store) -> Manifest | None:
    return store.find([("tokenize", FINGERPRINT)]).get(FINGERPRINT)


def test_create_has_one_winner_of_sixteen(root: str):
    barrier = threading.Barrier(16)

    def racer(url: str, number: int) -> bool:
        barrier.wait()
        return fs.create(url, f"{number}".encode() * 1000)

    with ThreadPoolExecutor(16) as pool:
        for round_number in range(200 if fs.is_local(root) else 8):
            url = fs.join(root, f"race-{round_number}.json")
            winners = [number for number, won in enumerate(pool.map(racer, [url] * 16, range(16))) if won]
            assert len(winners) == 1
            assert fs.read(url) == f"{winners[0]}".encode() * 1000


RACER = """
import sys
from marin import fs
folder, number = sys.argv[1:]
sys.stdout.write("ready\\n")
sys.stdout.flush()
sys.stdin.readline()
for round_number in range(200):
    if fs.create(f"{folder}/{round_number}.json", number.encode() * 1000):
        sys.stdout.write(f"{round_number}\\n")
"""


def test_create_has_one_winner_of_several_processes(tmp_path: Path):
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, str(tmp_path), str(number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(4)
    ]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    outputs = []
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    for racer in racers:
        outputs.append(racer.communicate(timeout=60)[0].split())
        assert racer.returncode == 0
    assert sorted(itertools.chain(*outputs), key=int) == [str(number) for number in range(200)]
    for number, won in enumerate(outputs):
        assert all(fs.read(str(tmp_path / f"{each}.json")) == f"{number}".encode() * 1000 for each in won)


def test_create_leaves_no_partial_files(tmp_path: Path):
    fs.create(str(tmp_path / "a.json"), b"1")
    fs.create(str(tmp_path / "a.json"), b"2")

    def fail_halfway() -> None:
        with fs.write_stream(str(tmp_path / "b.bin")) as stream:
            stream.write(b"half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_halfway()
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_commit_mine_then_same_then_other_bytes(store: Store):
    first, again = attempted(store, "a1"), attempted(store, "a2")
    assert store.commit(first).outcome == "committed"
    assert store.commit(first).outcome == "committed"  # the answer was lost and the request sent again
    assert store.commit(again) == (first, "same")
    adopted = store.commit(attempted(store, "a3", b"other"))
    assert adopted == (first, "adopted")
    folder = store.attempt_folder("tokenize", FINGERPRINT, "a3")
    assert b"data.bin" in fs.read(fs.join(folder, "nondeterminism.json"))


def test_commit_round_trip_gives_back_the_contents(store: Store):
    mine = attempted(store, "a1")
    store.commit(mine)
    assert found(store) == mine
    contents = store.contents(mine)
    assert contents.reader.read(contents.file("data.bin")) == b"tokens"
    assert (contents.meta, contents.digest) == ({"count": 1}, mine.digest)
    assert store.present(mine)


def test_commit_of_sixteen_attempts_has_one_winner_that_all_accept(store: Store):
    # Half of them have equal bytes: of those, whoever lost to one of its own kind hears "same".
    attempts = [attempted(store, f"a{number}", [b"even", b"odd"][number % 2]) for number in range(16)]
    barrier = threading.Barrier(16)

    def racer(mine: Manifest) -> Commit:
        barrier.wait()
        return store.commit(mine)

    with ThreadPoolExecutor(16) as pool:
        commits = list(pool.map(racer, attempts))
    winners = [mine for mine, commit in zip(attempts, commits, strict=True) if commit.outcome == "committed"]
    assert len(winners) == 1
    assert all(commit.manifest == winners[0] for commit in commits)
    assert found(store) == winners[0]
    assert sorted(commit.outcome for commit in commits) == ["adopted"] * 8 + ["committed"] + ["same"] * 7


DAMAGE = {
    "torn": lambda data: data[: len(data) // 2],
    "emptied": lambda data: b"",
    "flipped": lambda data: data.replace(b'"ada"', b'"eve"'),
    "another kind": lambda data: data.replace(b'"kind": "manifest"', b'"kind": "recipe"'),
    "no object": lambda data: b"[1, 2]",
    "not text": lambda data: b"\xff\xfe\x00",
    "newer schema": lambda data: data.replace(b'"schema": 1', b'"schema": 2'),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_find_damaged_manifest_is_a_miss_that_a_commit_replaces(
    store: Store, kind: str, caplog: pytest.LogCaptureFixture
):
    store.commit(attempted(store, "a1"))
    url = manifest_url(store)
    damaged = DAMAGE[kind](fs.read(url))
    assert damaged != fs.read(url)
    fs.replace(url, damaged)
    assert found(store) is None
    assert "passed over" in caplog.text
    again = attempted(store, "a2")
    assert store.commit(again) == (again, "committed")
    assert found(store) == again


@given(position=st.integers(0, 10_000), bit=st.integers(0, 7))
@settings(max_examples=60)
def test_find_any_flipped_bit_is_a_miss_or_harmless(position: int, bit: int):
    store = Store.open(f"memory://{uuid.uuid4().hex}/s", write=True)
    mine = attempted(store, "a1")
    store.commit(mine)
    data = bytearray(fs.read(manifest_url(store)))
    data[position % len(data)] ^= 1 << bit
    fs.replace(manifest_url(store), bytes(data))
    assert found(store) in (None, mine)


def test_find_result_whose_files_are_gone_is_made_anew(store: Store):
    first = attempted(store, "a1")
    store.commit(first)
    fs.delete(store.contents(first).file("data.bin").url)
    assert not store.present(first)
    again = attempted(store, "a2")
    assert store.commit(again).outcome == "committed"
    assert store.present(found(store) or first)


def test_find_manifest_whose_paths_climb_is_a_miss(store: Store):
    mine = attempted(store, "a1")
    for url in ("../outside", "/etc/passwd", "a/../../b", "s3://other/x"):
        climbing = dataclasses.replace(mine, files=(dataclasses.replace(mine.files[0], url=url),))
        fs.replace(manifest_url(store), climbing.encode())
        assert found(store) is None, url


def test_two_fingerprints_of_one_prefix_are_told_apart(store: Store):
    other = FINGERPRINT[:16] + "f" * 48
    store.commit(attempted(store, "a1"))
    assert store.find([("tokenize", other)]) == {}
    with pytest.raises(StoreError, match="same first 16 digits"):
        store.commit(attempted(store, "a2", fingerprint=other))


def test_shards_are_committed_once_and_missed_when_damaged(store: Store):
    key = "ab" * 32
    assert store.shards.get(key) is None
    output = store.shards.output(key, "a1")
    output.write("part", b"x")
    mine = store.shards.commit(key, "first", output, {"n": 1})
    second = store.shards.output(key, "a2")
    second.write("part", b"y")
    assert store.shards.commit(key, "first", second, {"n": 2}) == mine
    assert store.shards.get_many([key, "cd" * 32]) == {key: mine}
    fs.delete(mine.file("part").url)
    assert store.shards.get(key) is None
    third = store.shards.output(key, "a3")
    third.write("part", b"z")
    assert store.shards.commit(key, "first", third, None).value is None


def test_output_refuses_paths_that_climb_or_repeat(store: Store):
    output = store.attempt_output("tokenize", FINGERPRINT, "a1")
    output.write("x/y.bin", b"1")
    for path in ("../x", "/x", "a/../b", "", "a//b", "a\\b", "x/y.bin"):
        with pytest.raises(ConfigurationError):
            output.write(path, b"2")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_lease_is_held_by_one_and_given_back(store: Store):
    first, second = Leases(store, "run-1", user="ada"), Leases(store, "run-2")
    lease = first.acquire("tokenize", FINGERPRINT)
    assert isinstance(lease, Lease)
    holder = second.acquire("tokenize", FINGERPRINT)
    assert isinstance(holder, Holder)
    assert (holder.run, holder.user, holder.epoch) == ("run-1", "ada", 1)
    first.release(lease)
    first.release(lease)
    taken = second.acquire("tokenize", FINGERPRINT)
    assert isinstance(taken, Lease)
    assert taken.epoch == 2


def test_lease_of_a_silent_run_is_taken_after_the_ttl_on_the_waiters_clock(store: Store):
    clock = Clock()
    heartbeat = Heartbeat(store, "run-1", interval=1000)
    heartbeat.start()
    Leases(store, "run-1").acquire("tokenize", FINGERPRINT)
    waiter = Leases(store, "run-2", clock=clock)
    assert isinstance(waiter.acquire("tokenize", FINGERPRINT), Holder)
    clock.now = 80
    assert isinstance(waiter.acquire("tokenize", FINGERPRINT), Holder)
    fs.replace(fs.join(store.url, "runs", "run-1", "heartbeat.json"), b"another beat")  # it lives after all
    clock.now = 100
    assert isinstance(waiter.acquire("tokenize", FINGERPRINT), Holder)
    clock.now = 189
    assert isinstance(waiter.acquire("tokenize", FINGERPRINT), Holder)
    clock.now = 190
    taken = waiter.acquire("tokenize", FINGERPRINT)
    heartbeat.stop()
    assert isinstance(taken, Lease)
    assert taken.epoch == 2


def test_lease_race_has_one_winner(store: Store):
    barrier = threading.Barrier(8)

    def racer(number: int) -> Lease | Holder:
        barrier.wait()
        return Leases(store, f"run-{number}").acquire("tokenize", FINGERPRINT)

    with ThreadPoolExecutor(8) as pool:
        taken = list(pool.map(racer, range(8)))
    assert sum(isinstance(each, Lease) for each in taken) == 1


def test_lease_damaged_record_does_not_block(store: Store):
    lease = Leases(store, "run-1").acquire("tokenize", FINGERPRINT)
    assert isinstance(lease, Lease)
    fs.replace(lease.url, b"{")
    assert isinstance(Leases(store, "run-2").acquire("tokenize", FINGERPRINT), Lease)


def test_heartbeat_that_cannot_beat_fences(store: Store):
    clock = Clock()
    heartbeat = Heartbeat(store, "run-1", interval=1000, clock=clock)
    heartbeat.start()
    assert not heartbeat.fenced
    clock.now = 61
    assert heartbeat.fenced
    heartbeat.stop()


def test_events_arrive_once_in_order_and_survive_torn_lines(store: Store, caplog: pytest.LogCaptureFixture):
    writers = [EventWriter(store.url, "run-1", name, interval=0.01) for name in ("driver", "worker")]
    reader = EventReader(store.url, "run-1")
    for number, writer in zip(range(20), itertools.cycle(writers), strict=False):
        writer.emit("metric", number=number, loss=float("nan"))
    for writer in writers:
        writer.close()
    events = reader.poll()
    assert [event["number"] for event in events] == list(range(20))
    assert reader.poll() == []
    torn = fs.join(store.url, "runs", "run-1", "events", "late-000001.jsonl")
    fs.replace(torn, b'{"kind": "log", "time": "x"}\n{"kind": "lo')
    assert [event["kind"] for event in reader.poll()] == ["log"]
    assert "torn" in caplog.text


def test_store_of_a_newer_format_or_damaged_record_is_refused(store: Store):
    url = fs.join(store.url, "store.json")
    whole = fs.read(url)
    fs.replace(url, whole[:10])
    with pytest.raises(StoreError, match=r"store\.json cannot be read"):
        Store.open(store.url, write=False)
    fs.replace(url, encode("store", {"format": 2}))
    with pytest.raises(StoreError, match="format 2"):
        Store.open(store.url, write=True)


def test_store_that_is_absent_reads_as_empty(root: str):
    store = Store.open(root, write=False)
    assert store.runs() == []
    assert store.manifests() == []
    assert found(store) is None
    assert not fs.exists(fs.join(root, "store.json"))


def test_runs_are_listed_newest_first(store: Store):
    record = {"state": "done", "steps": [], "store": store.url, "user": "ada", "host": "h", "pid": 1, "started": "now"}
    for run in ("20260101-000000-aaaa", "20260102-000000-bbbb"):
        store.write_run(run, {"run": run, **record})
    assert store.runs() == ["20260102-000000-bbbb", "20260101-000000-aaaa"]
    assert store.read_run("20260101-000000-aaaa") == {"run": "20260101-000000-aaaa", **record}


def test_shard_names_do_not_count_in_an_artifacts_digest(store: Store):
    contents = store.attempt_output("tokenize", FINGERPRINT, "a1").contents(shards=[Shard("a", "d1"), Shard("b", "d2")])
    renamed = dataclasses.replace(contents, shards=(Shard("c", "d1"), Shard("d", "d2")))
    swapped = dataclasses.replace(contents, shards=contents.shards[::-1])
    assert output_digest("T", 1, contents) == output_digest("T", 1, renamed)
    assert output_digest("T", 1, contents) != output_digest("T", 1, swapped)
