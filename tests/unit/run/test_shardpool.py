"""The driver's side of a map over a scripted cluster: workers with names, losses to order; shards on a real store."""

import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from marin import fs
from marin.base.errors import Interrupted, StepError
from marin.graph.artifact import Value
from marin.graph.context import Context
from marin.graph.files import Shard
from marin.graph.step import Step
from marin.run import shardwork
from marin.run.order import GroupReport, Identity, ShardGroup
from marin.run.retry import Cause
from marin.run.shardpool import TEXTS_KEPT, ShardMap
from marin.run.shardwork import run_group
from marin.store import EventReader, StopWatch, Store, ask_to_stop
from marin.view.progress import RunProgress

CALLS: Counter[str] = Counter()
DO: dict[str, Callable[[], Any]] = {}
"""What happens in the shards of these names."""


class Mapping(Step[Value[int]]):
    version = 1

    def run(self, ctx: Context) -> Value[int]:
        raise AssertionError("the map is driven without it")


def square(shard: Shard) -> int:
    CALLS[shard.name] += 1
    DO.get(shard.name, int)()
    return int(shard.name) ** 2


class Cluster:
    """A pool of so many workers, which run a group when waited for; `lost` groups lose their worker after n shards."""

    def __init__(self, width: int = 2, lost: dict[int, int] | None = None) -> None:
        self.width = width
        self.lost = lost or {}
        self.groups: deque[ShardGroup] = deque()
        self.submitted: list[ShardGroup] = []
        self.most = 0
        self.ended = 0

    def submit(self, group: ShardGroup) -> None:
        self.groups.append(group)
        self.submitted.append(group)
        self.most = max(self.most, len(self.groups))

    def wait(self, timeout: float) -> list[tuple[ShardGroup, GroupReport]]:
        group = self.groups.popleft()
        self.ended += 1
        keep = self.lost.get(self.ended)
        if keep is None:
            return [
                (group, replace(run_group(group, own_process=False), worker="second" if group.elsewhere else "first"))
            ]
        if keep:
            run_group(replace(group, shards=group.shards[:keep]), own_process=False)
        return [(group, GroupReport(cause=Cause.LOST, message="the worker was killed"))]

    def why_waiting(self, seconds: float) -> str:
        return ""

    def close(self) -> None:
        self.groups.clear()


class Attempt:
    """One attempt's map, with what it emits and logs."""

    def __init__(self, store: str, run: str = "run-1", retries: int = 3) -> None:
        self.events: list[dict[str, Any]] = []
        self.logged: list[str] = []
        self.identity = Identity(store, run, "mapping", "mapping", "f" * 64, f"{run}-ffffffff-1")
        self.work = ShardMap(
            identity=self.identity,
            step_class=Mapping,
            fn=square,
            config={},
            cache=Store.open(store, write=True).shards,
            retries=retries,
            emit=lambda kind, **fields: self.events.append({"kind": kind, **fields}),
            log=self.logged.append,
        )

    def run(self, count: int, cluster: Cluster) -> list[Any]:
        return [shard.value for shard in self.work.run(numbers(count), lambda: cluster)]


def numbers(count: int) -> list[Shard]:
    return [Shard(f"{number:06d}", digest=f"number {number}") for number in range(count)]


def raise_unlucky() -> None:
    raise ValueError("unlucky")


@pytest.fixture(autouse=True)
def forget() -> None:
    CALLS.clear()
    DO.clear()


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"memory://{tmp_path.name}/store"  # these tests are about the driver: no disk is flushed


def test_run_many_shards_go_through_a_window_of_groups_and_leave_results_only(store):
    cluster, attempt = Cluster(width=3), Attempt(store)
    assert attempt.run(2000, cluster) == [number**2 for number in range(2000)]
    assert cluster.most == 2 * cluster.width
    assert len(cluster.submitted) < 200
    assert max(CALLS.values()) == 1
    assert len(attempt.events) < 100
    assert not attempt.logged


def test_shard_that_fails_on_two_workers_is_set_aside_and_named_with_its_first_failure(store):
    DO["000007"] = raise_unlucky
    DO["000009"] = lambda: raise_unlucky() if CALLS["000009"] == 1 else None
    cluster, attempt = Cluster(), Attempt(store)
    with pytest.raises(StepError, match=r"1 of 50 shards failed \(000007\); first 000007: ValueError: unlucky"):
        attempt.run(50, cluster)
    assert (CALLS["000007"], CALLS["000009"], sum(CALLS.values())) == (2, 2, 52)
    elsewhere = [group.shards[0][1].name for group in cluster.submitted if group.elsewhere]
    assert sorted(elsewhere) == ["000007", "000009"]
    log = "".join(attempt.logged)
    assert "shard 000007, try 1 of 2, on first" in log
    assert "shard 000007, try 2 of 2, on second" in log
    DO.clear()
    CALLS.clear()
    assert Attempt(store, "run-2").run(50, Cluster())[7] == 49
    assert CALLS == {"000007": 1}


def test_when_every_shard_fails_log_and_memory_keep_a_few_texts(store):
    DO.update({f"{number:06d}": raise_unlucky for number in range(300)})
    attempt = Attempt(store)
    with pytest.raises(StepError, match="300 of 300 shards failed"):
        attempt.run(300, Cluster())
    assert len(attempt.logged) <= 2 * TEXTS_KEPT + 1
    assert not any(failure.text for failure in attempt.work.failed.values())


def test_worker_lost_with_a_shard_in_hand_costs_that_shard(store):
    cluster = Cluster(width=1, lost={3: 2})  # the first two groups are of one shard: how long they take is unknown
    assert len(Attempt(store).run(300, cluster)) == 300
    assert len(cluster.submitted[2].shards) > 3, "the lost group must have more shards than were done"
    assert [len(group.shards) for group in cluster.submitted if group.shards[0][1].name == "000004"] == [1]
    assert max(CALLS.values()) == 1, "what was committed is not run again"


def test_worker_lost_again_and_again_with_one_shard_sets_it_aside(store):
    attempt = Attempt(store, retries=1)
    cluster = Cluster(width=1, lost={1: 0, 3: 0})  # the first group is of one shard; then it is tried after another
    with pytest.raises(StepError, match=r"1 of 20 shards failed \(000000\).*the worker was killed"):
        attempt.run(20, cluster)
    assert [event["shard"] for event in attempt.events if event["kind"] == "exit"] == ["000000", "000000"]
    assert sum(CALLS.values()) == 19


def test_storage_that_does_not_answer_is_no_shards_fault_and_the_rest_of_its_group_waits(store):
    silent = iter([fs.Unavailable("storage refused: no answer", where="s3://x", hint="wait"), None])

    def read() -> None:
        if error := next(silent, None):
            raise error

    DO["000001"] = read
    attempt, cluster = Attempt(store), Cluster(width=1)
    assert attempt.run(4, cluster) == [0, 1, 4, 9]
    assert CALLS == {"000000": 1, "000001": 2, "000002": 1, "000003": 1}
    (exit_,) = [event for event in attempt.events if event["kind"] == "exit"]
    assert (exit_["cause"], exit_["shard"]) == ("worker lost", "000001")
    assert "storage refused: no answer, seen on" in exit_["message"]


def test_storage_that_never_answers_fails_the_map_with_its_own_hint(store):
    def read() -> None:
        raise fs.Unavailable("storage refused: no answer", where="s3://x", hint="check that the store is reachable")

    DO["000001"] = read
    with pytest.raises(StepError, match=r"1 of 2 shards failed .*no answer") as failed:
        Attempt(store, retries=1).run(2, Cluster(width=1))
    assert failed.value.hint.startswith("check that the store is reachable; the budget of .on(retries=1)")


def test_stop_request_ends_after_the_shard_in_hand_and_keeps_what_is_done(store, monkeypatch):
    monkeypatch.setitem(StopWatch.__init__.__kwdefaults__, "interval", 0.0)
    DO["000100"] = lambda: ask_to_stop(store, "run-1", user="somebody")
    cluster, attempt = Cluster(width=1), Attempt(store)
    with pytest.raises(Interrupted, match="101 of 300 shards are kept"):
        attempt.run(300, cluster)
    assert len(CALLS) == 101
    assert len(Attempt(store, "run-2").run(300, Cluster())) == 300
    assert max(CALLS.values()) == 1


def test_shard_that_takes_long_is_shown_with_host_time_and_median(store, monkeypatch):
    monkeypatch.setattr(shardwork, "LONG_SECONDS", 0.2)
    seen: list[str] = []

    def look() -> None:
        deadline = time.monotonic() + 10
        while not seen and time.monotonic() < deadline:
            time.sleep(0.05)
            progress = RunProgress.of([("mapping", "mapping")])
            at = {"name": "mapping", "time": "2026-01-01T00:00:00+00:00"}
            progress.apply([{**at, "kind": "state", "state": "running"}, {**at, "kind": "progress", "usual": 0.001}])
            progress.apply(EventReader(store, "run-1").poll())
            seen.extend(filter(None, [progress.rows["mapping"].slowest("2100-01-01T00:00:00+00:00")]))

    DO["000003"] = look
    Attempt(store).run(4, Cluster(width=1))
    assert seen
    assert seen[0].startswith("slowest: 000003 on ")
    assert seen[0].endswith("; median 0.0 s")
    progress = RunProgress.of([("mapping", "mapping")])
    progress.apply(EventReader(store, "run-1").poll())
    assert not progress.rows["mapping"].long, "it has ended"
