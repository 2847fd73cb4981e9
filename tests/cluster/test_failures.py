"""The failure table on a Ray cluster of three working nodes on this machine, with a plain step, a map and a gang.

After each failure: the digests of an undisturbed run, only unfinished work done again, the right cause charged, words
that name what, where and the next command, and nothing left in the cluster (harness.py). One cluster serves all tests;
a test that loses a part of it leaves a cluster that `start` makes whole.
"""

import importlib
import os
import re
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import harness
import psutil
import pytest

from marin.run import api

MODULES = str(Path(__file__).parent / "modules")
WORKERS = {"one": 3, "two": 3, "three": 3}
KINDS = ("plain", "squares", "walk")
ENVIRONMENT = {**harness.IMPATIENT, **harness.WATCHFUL}
PATIENCE = 3


@pytest.fixture(scope="module")
def steps() -> ModuleType:
    return importlib.import_module("failure_steps")


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

    def start(
        self,
        pipeline: str = "all_kinds",
        *,
        address: str | None = None,
        environment: Mapping[str, str] = {},
        **options: object,
    ) -> Any:
        """Start `marin run` of a pipeline."""
        drive = harness.Drive(
            f"{MODULES}/failure_steps.py:{pipeline}",
            store=self.store,
            address=self.cluster.address if address is None else address,
            options={"folder": self.folder, **options},
            environment={**harness.WATCHFUL, **environment},
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

    def check_done(self, drive: Any, *, seconds: float = 120) -> dict[str, Any]:
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
        twice = {name for name, times in counted.items() if times > 1}
        assert twice <= {f"shard-{each}" for each in shards}
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


def test_rank_told_to_end_keeps_its_last_step_and_costs_no_retry(play):
    drive = play.start("gang", hold=10, retries=0)
    drive.until(play.noted("step-10-rank-0", "step-10-rank-1"))
    os.kill(play.pid("step-10-rank-1"), signal.SIGTERM)
    drive.until(lambda: drive.events("exit"))
    play.go()
    play.check_done(drive)
    assert play.exits(drive) == [("walk", "preempted")]
    assert play.notes("step-10-rank-0") == ["step-10-rank-0-generation-1"], "what it was told at was not kept"


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


def test_hung_collective_and_hung_loader_leave_stacks_and_are_formed_again(play):
    drive = play.start("gang", trouble="absent:rank-1@4,loader:rank-0@8", hang_after=PATIENCE)
    play.check_done(drive)
    assert play.exits(drive) == [("walk", "hung")] * 2
    for event in drive.events("exit"):
        assert "of 2 on node" in event["message"]
        assert "in `walk` at step" in event["message"]
    logs = {path.name: path.read_text() for path in play.store.rglob("rank-*.log")}
    assert "in absent" in logs["rank-1.log"]
    assert "in stuck_loader" in logs["rank-0.log"]
    play.check_repeats(steps_from=3)


def test_lost_raylet_and_lost_node_are_survived_by_all_kinds(play):
    drive = hold_all(play)
    play.cluster.node_of(play.pid("step-10-rank-0")).raylet.kill()
    drive.until(play.noted("step-10-rank-0-generation-2"))
    play.cluster.node_of(play.pid("step-10-rank-0-generation-2")).die()
    drive.until(lambda: len([event for event in drive.events("exit") if event["name"] == "walk"]) == 2)
    play.go()  # one node is left, where the gang has room once a shard has ended
    play.check_done(drive)
    assert {cause for _, cause in play.exits(drive)} == {"worker lost"}
    lost = [event["message"] for event in drive.events("exit") if event["name"] == "walk"]
    # The attempt that watches over the ranks may have been on the same node.
    assert all(re.search(r"ranks? .* of 2 on node .*: lost with their host|node \S+ was lost", each) for each in lost)
    play.check_repeats(steps_from=9, shards=("10", "11"))


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


def test_killed_driver_leaves_no_worker_and_the_rerun_continues_at_once(play):
    drive = hold_all(play)
    os.kill(drive.process.pid, signal.SIGKILL)
    drive.process.wait(timeout=10)
    harness.assert_nothing_left(play.cluster, drive, seconds=30)
    play.go()
    again = play.start(hold=10)
    play.check_done(again)
    play.check_repeats(steps_from=9, shards=("10", "11"))


@pytest.mark.parametrize("victim", ["raylet", pytest.param("gcs_server", marks=pytest.mark.slow)])
def test_embedded_cluster_that_loses_its_process_ends_the_run_with_the_next_command(play, victim):
    drive = play.start("plain", address="")
    drive.until(play.noted("plain-7"))
    family = psutil.Process(drive.process.pid).children(recursive=True)
    next(each for each in family if each.name() == victim).kill()
    check_lost_cluster(drive.end(30), "Ray has ended on this machine")
    # Ray's agents ask a dead head for a minute before they end.
    own = [each for each in family if "Agent" not in harness.title_of(each)]
    harness.until(lambda: not [each for each in own if harness.lives(each)], seconds=20)
    play.go()
    play.check_done(play.start("plain", address=""))


@pytest.mark.slow  # as large as what this machine has left
def test_node_out_of_memory_is_named_and_the_step_is_tried_again(play):
    used = psutil.virtual_memory()
    limit = (used.total - used.available + 3 * 2**30) / used.total
    small = {"RAY_memory_usage_threshold": f"{limit:.3f}", "RAY_memory_monitor_refresh_ms": "100"}
    play.go()
    with play.cluster.with_node("large", 8, small):
        drive = play.start("hungry", trouble="eat:plain,eat:rank-0@4")
        play.check_done(drive, seconds=90)
    assert play.exits(drive) == [("plain", "out of memory"), ("walk", "out of memory")]
    assert all("ran out of memory" in event["message"] for event in drive.events("exit"))
