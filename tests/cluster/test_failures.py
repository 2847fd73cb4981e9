"""The failure table on a Ray cluster of three working nodes on this machine, with a plain step, a map and a gang.

After each failure: the digests of an undisturbed run, only unfinished work done again, the right cause charged, words
that name what, where and the next command, and nothing left in the cluster (harness.py). One cluster serves all tests;
a test that loses a part of it leaves a cluster that `start` makes whole.
"""

import importlib
import os
import re
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import pytest

from marin.run import api

HERE = Path(__file__).parent
MODULES = str(HERE / "modules")
for folder in (MODULES, str(HERE)):
    if folder not in sys.path:
        sys.path.insert(0, folder)
harness = importlib.import_module("harness")

WORKERS = {"one": 3, "two": 3, "three": 3}
KINDS = ("plain", "squares", "walk")
# A worker that gives no sign of life: marin's choice is 20 s and 20 s.
SOON = {"RAY_grpc_client_keepalive_time_ms": "2000", "RAY_grpc_client_keepalive_timeout_ms": "2000"}
PATIENCE = 3


@pytest.fixture(scope="module")
def steps() -> ModuleType:
    return importlib.import_module("failure_steps")


@pytest.fixture(scope="module")
def whole() -> Iterator[Any]:
    with harness.cluster_of_nodes(workers=WORKERS, environment={**harness.IMPATIENT, **SOON}) as cluster:
        yield cluster


@pytest.fixture
def cluster(whole: Any) -> Any:
    """The cluster with all its nodes, whatever the test before did to them."""
    whole.start()
    return whole


@pytest.fixture(scope="module")
def undisturbed(steps: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The digest of each step where nothing goes wrong."""
    root = tmp_path_factory.mktemp("undisturbed")
    (root / "go").touch()
    result = api.run_plan(
        api.plan(steps.all_kinds(folder=str(root), ranks=1), store=root / "store"),
        store=root / "store",
        backend="inline",
    )
    return {step.name: str(step.digest) for step in result.steps}


class Play:
    """A scratch folder, a store, and the runs of one test on the cluster."""

    def __init__(self, root: Path, cluster: Any, undisturbed: Mapping[str, str]) -> None:
        self.folder = root / "notes"
        self.folder.mkdir()
        self.store = root / "store"
        self.cluster = cluster
        self.undisturbed = undisturbed
        self.drives: list[Any] = []

    def start(self, pipeline: str = "all_kinds", *, address: str | None = None, **options: object) -> Any:
        """Start `marin run` of a pipeline."""
        drive = harness.Drive(
            f"{MODULES}/failure_steps.py:{pipeline}",
            store=self.store,
            address=self.cluster.address if address is None else address,
            options={"folder": self.folder, **options},
            environment=SOON,
        )
        self.drives.append(drive)
        return drive

    def go(self) -> None:
        """Let everything end that waits."""
        (self.folder / "go").touch()

    def notes(self, what: str) -> list[str]:
        """Return what was noted, without who and when."""
        return sorted(path.name.split(".")[0] for path in self.folder.glob(f"{what}*.*.*"))

    def pid(self, what: str) -> int:
        """Return the process that noted something, the last one if it was several times."""
        return int(max(self.folder.glob(f"{what}*.*.*"), key=lambda path: path.stat().st_mtime_ns).name.split(".")[1])

    def noted(self, *what: str) -> Callable[[], bool]:
        """Return whether all this was noted, as a question to be asked."""
        return lambda: all(self.notes(each) for each in what)

    def check_done(self, drive: Any, *, seconds: float = 60) -> dict[str, Any]:
        """Assert an end as if nothing had happened; return the steps by name."""
        ended = drive.end(seconds)
        assert ended.code == 0, drive.story()
        found = {step["name"]: step for step in ended.json["steps"]}
        assert {name: step["digest"] for name, step in found.items()} == {n: self.undisturbed[n] for n in found}
        harness.assert_nothing_left(self.cluster, drive)
        return found

    def exits(self, drive: Any) -> list[tuple[str, str]]:
        """Return name and cause of each exit that was recorded."""
        return sorted((event["name"], event["cause"]) for event in drive.events("exit"))

    def check_repeats(self, *, steps_from: int, shards: tuple[str, ...] = ()) -> None:
        """Assert that no shard but these was computed twice, and no step of the gang before a kept one."""
        counted = Counter(self.notes("shard-"))
        assert sorted(name for name, times in counted.items() if times > 1) == sorted(
            f"shard-{each}" for each in shards
        )
        walked = Counter(
            name.split("-generation")[0] for name in self.notes("step-") if name.endswith(tuple("123456789"))
        )
        again = [name for name, times in walked.items() if times > 1 and int(name.split("-")[1]) < steps_from]
        assert not again, f"done again although it was kept: {again}"


@pytest.fixture
def play(tmp_path: Path, cluster: Any, undisturbed: dict[str, str]) -> Iterator[Play]:
    played = Play(tmp_path, cluster, undisturbed)
    yield played
    for drive in played.drives:
        drive.kill()


def hold_all(play: Play, **options: object) -> Any:
    """Start all three kinds, and wait until the plain step, two shards and both ranks can be killed at leisure."""
    drive = play.start(hold=10, **options)
    drive.until(play.noted("plain-7", "shard-10", "shard-11", "step-10-rank-0", "step-10-rank-1"))
    return drive


VICTIMS = ("plain-7", "shard-10", "step-10-rank-1-generation-1")


def test_killed_worker_shard_and_rank_cost_only_what_they_had_in_hand(play):
    drive = hold_all(play)
    for victim in VICTIMS:
        os.kill(play.pid(victim), signal.SIGKILL)
    drive.until(lambda: len(drive.events("exit")) == 3)
    play.go()
    found = play.check_done(drive)
    assert play.exits(drive) == [(name, "worker lost") for name in KINDS]
    assert {name: step["attempts"] for name, step in found.items()} == {"plain": 2, "squares": 1, "walk": 1}
    play.check_repeats(steps_from=9, shards=("10",))
    said = {event["name"]: event for event in drive.events("exit")}
    assert said["squares"]["shard"] == "10"
    assert re.fullmatch(r"rank 1 of 2 on node .+ was killed by SIGKILL", said["walk"]["message"])


def test_frozen_worker_shard_and_rank_are_seen_and_replaced(play):
    drive = hold_all(play, hang_after=PATIENCE)
    frozen = [psutil.Process(play.pid(victim)) for victim in VICTIMS]
    for each in frozen:
        each.suspend()
    drive.until(lambda: {event["name"] for event in drive.events("exit")} >= set(KINDS))
    play.go()
    play.check_done(drive)
    causes = dict(play.exits(drive))
    assert (causes["plain"], causes["squares"], causes["walk"]) == ("worker lost", "worker lost", "hung")
    play.check_repeats(steps_from=9, shards=("10",))
    assert "rank 1 of 2" in next(e["message"] for e in drive.events("exit") if e["name"] == "walk")
    harness.until(lambda: not any(map(harness.lives, frozen)), seconds=20)


def test_user_exceptions_are_final_and_show_the_users_frame_first(play):
    play.go()
    drive = play.start(trouble="raise:plain,raise:shard-03,raise:rank-1@2")
    ended = drive.end()
    assert ended.code == 1
    steps = {step["name"]: step for step in ended.json["steps"]}
    for name, who in zip(KINDS, ("plain", "shard-03", "rank-1@2"), strict=True):
        error = steps[name]["error"]
        assert f"ValueError: {who} has no luck" in error["message"]
        assert error["where"].startswith("failure_steps.py:")
        assert error["where"].endswith("in be_unlucky")
        assert error["hint"]
        assert steps[name]["attempts"] == 1
    assert play.notes("step-02-rank-1") == ["step-02-rank-1-generation-1"]
    harness.assert_nothing_left(play.cluster, drive)


def test_memory_errors_are_charged_to_memory_and_tried_again(play):
    play.go()
    drive = play.start(trouble="memory:plain,memory:shard-03,memory:rank-1@4")
    play.check_done(drive)
    assert play.exits(drive) == [("plain", "out of memory"), ("walk", "out of memory")]
    play.check_repeats(steps_from=3, shards=("03",))


def test_head_started_anew_ends_the_run_with_the_next_command_which_continues(play):
    drive = hold_all(play)
    play.cluster.restart_head()
    ended = drive.end(30)
    check_lost_cluster(ended, "the head of the Ray cluster was started anew")
    assert ended.json["error"]["where"] == play.cluster.address
    play.cluster.start()
    play.go()
    again = play.start(hold=10)
    play.check_done(again)
    play.check_repeats(steps_from=9, shards=("10", "11"))


def check_lost_cluster(ended: Any, what: str) -> None:
    """Assert that a run ended for want of its cluster, and says what to do."""
    assert ended.code == 3, ended
    error = ended.json["error"]
    assert error["type"] == "ClusterError"
    assert what in error["message"], error
    assert "run the same command again: what is finished is kept" in error["hint"]
    assert "run the same command again" in ended.said
