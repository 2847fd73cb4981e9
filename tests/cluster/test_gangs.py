"""Gangs on a Ray cluster of three working nodes on this machine: where ranks sit, many at once, and how wide they are.

The ranks import no torch and add integers, so that results are equal to the bit at any width. One cluster serves all
tests; a test that loses a node leaves a cluster that `start` makes whole.
"""

import importlib
import subprocess
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path
from types import ModuleType
from typing import Any

import harness
import psutil
import pytest

from marin.graph.artifact import Value
from marin.run import api
from marin.store import Store

MODULES = str(Path(__file__).parent / "modules")
CPUS = 4
WORKERS = dict.fromkeys(("one", "two", "three"), CPUS)
# A run's workers have an environment of their own, so Ray's ready-made ones would only cost time.
ENVIRONMENT = {**harness.IMPATIENT, **harness.WATCHFUL, "RAY_prestart_worker_first_driver": "0"}
STEPS = 600
PATIENCE = 180  # seconds; on quiet cores each test takes a fraction of that


@pytest.fixture(scope="module")
def steps() -> ModuleType:
    return importlib.import_module("gang_steps")


@pytest.fixture(scope="module")
def undisturbed(steps: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of the sum that one rank computes."""
    store, notes = (tmp_path_factory.mktemp(name) for name in ("store", "notes"))
    (notes / "go").touch()
    plan = api.plan(steps.Sum(steps=STEPS, folder=str(notes)), store=store)
    return str(api.run_plan(plan, store=store, backend="inline").steps[0].digest)


class Play:
    """A scratch folder, a store, and a run of one test."""

    def __init__(
        self,
        cluster: Any,
        root: Path,
        pipeline: str,
        *,
        environment: Mapping[str, str] = harness.WATCHFUL,
        **options: object,
    ) -> None:
        self.notes = root / "notes"
        self.notes.mkdir(parents=True, exist_ok=True)
        self.store = root / "store"
        target = f"{MODULES}/gang_steps.py:{pipeline}"
        self.drive = harness.Drive(
            target,
            store=self.store,
            address=cluster.address,
            options={"folder": self.notes, **options},
            environment=environment,
        )

    def noted(self, what: str) -> list[str]:
        """Return what was noted, in the order of names."""
        return sorted(path.name.split(".")[0] for path in self.notes.glob(f"{what}*"))

    def when(self, what: str) -> list[float]:
        """Return when it was noted, in order."""
        return sorted(path.stat().st_mtime for path in self.notes.glob(f"{what}*"))

    def until(self, what: str, *, seconds: float = PATIENCE) -> None:
        """Wait until something was noted; fail with the run's words if it ends before."""
        self.drive.until(lambda: self.noted(what), seconds=seconds)

    def go(self) -> None:
        """Let the ranks hurry."""
        (self.notes / "go").touch()

    def placed(self, generation: int) -> dict[int, dict[str, Any]]:
        """Return where each rank of a generation was started."""
        events = [event for event in self.drive.events("placement") if event.get("generation") == generation]
        return {event["rank"]: event for event in events}

    def formings(self) -> list[str]:
        """Return what was said of each forming."""
        said = [str(event.get("detail", "")) for event in self.drive.events("state")]
        return [words for words in said if words.startswith("forming")]

    def step(self) -> dict[str, Any]:
        """Return how the only step ended; fail if the run did not succeed."""
        ended = self.drive.end(PATIENCE)
        assert ended.code == 0, self.drive.story()
        (step,) = ended.json["steps"]
        return dict(step)


@pytest.fixture
def start(cluster: Any, tmp_path: Path) -> Iterator[Any]:
    """Start runs; those that still run at the end of a test are ended."""
    plays: list[Play] = []

    def run(pipeline: str, *, name: str = "run", **options: object) -> Play:
        plays.append(Play(cluster, tmp_path / name, pipeline, **options))
        return plays[-1]

    yield run
    for play in plays:
        play.drive.kill()


def values(play: Play, seconds: float) -> dict[str, list[dict[str, Any]]]:
    """Return what each gang's ranks have returned."""
    ended = play.drive.end(seconds)
    assert ended.code == 0, play.drive.story()
    opened = Store.open(str(play.store), write=False)
    keys = {(step["step"], step["fingerprint"]): step["name"] for step in ended.json["steps"]}
    found = opened.find(list(keys))
    return {name: Value.open(opened.contents(found[fp])).value for (_, fp), name in keys.items()}


def check_seats(ranks: list[dict[str, Any]], placed: dict[int, dict[str, Any]]) -> None:
    """Each rank has torchrun's variables; ranks of one node are neighbours; the meeting point is rank 0's own."""
    assert [rank["RANK"] for rank in ranks] == [str(number) for number in range(len(ranks))]
    assert {rank["WORLD_SIZE"] for rank in ranks} == {str(len(ranks))}
    assert {rank["MASTER_PORT"] for rank in ranks} == {str(ranks[0]["port"])}
    nodes = [list(each) for _, each in groupby(ranks, key=lambda rank: rank["server"])]
    assert len(nodes) == len({rank["server"] for rank in ranks}), "ranks of one node are not neighbours"
    seats = [(int(rank["NODE_RANK"]), int(rank["LOCAL_RANK"])) for rank in ranks]
    assert seats == [(i, j) for i, node in enumerate(nodes) for j in range(len(node))]
    titles = [placed[number]["node"] for number in range(len(ranks))]
    assert [len(list(each)) for _, each in groupby(titles)] == [len(node) for node in nodes]
    assert [key for key, _ in groupby(titles)] == sorted(set(titles)), "nodes are not in order"
    address = "127.0.0.1" if len(nodes) == 1 else titles[0].split()[0]
    assert {rank["MASTER_ADDR"] for rank in ranks} == {address}


def check_gangs(cluster: Any, play: Play, gangs: int, seconds: float) -> None:
    """All gangs stood at once, each alone with its own ranks."""
    found = values(play, seconds)
    assert len(found) == gangs
    placed = play.drive.events("placement")
    for name, ranks in found.items():
        number = int(name.removeprefix("gang-"))
        own = {event["rank"]: event for event in placed if event["name"] == name and "rank" in event}
        check_seats(ranks, own)
        total = sum(1000 * number + rank for rank in range(len(ranks)))
        assert {rank["sum"] for rank in ranks} == {total}, "numbers of another gang were added"
    ports = [ranks[0]["port"] for ranks in found.values()]
    assert len(set(ports)) == gangs
    assert {event["generation"] for event in placed if "rank" in event} == {1}, "a gang had to be formed again"
    assert len(found[f"gang-{gangs - 1:04d}"]) == 6
    harness.assert_nothing_left(cluster, play.drive)


def test_twelve_gangs_stand_at_once_each_with_its_own_meeting_point(cluster, start):
    check_gangs(cluster, start("seats", gangs=12), 12, seconds=PATIENCE)


@pytest.mark.slow  # some 300 processes
@pytest.mark.timeout(900)
def test_fifty_gangs_stand_at_once_each_with_its_own_meeting_point(tmp_path):
    patient = {"RAY_prestart_worker_first_driver": "0"}  # at a load of 100, two seconds of silence mean nothing
    with harness.cluster_of_nodes(workers=dict.fromkeys(WORKERS, 20), environment=patient) as wide:
        play = Play(wide, tmp_path, "seats", environment={}, gangs=50)
        try:
            check_gangs(wide, play, 50, seconds=600)
        finally:
            play.drive.kill()


def test_two_gangs_that_each_need_every_device_run_one_after_the_other(cluster, start):
    options = {"nodes": 3, "least": 3, "cpus": CPUS}
    plays = [start("sums", name=name, steps=30, **options) for name in ("here", "there")]
    for play in plays:
        assert play.step()["attempts"] == 1
    first, second = sorted(plays, key=lambda play: play.when("formed")[0])
    assert first.when("step")[-1] < second.when("formed")[0]
    assert any("waiting for 3 nodes" in str(event.get("detail")) for event in second.drive.events("state"))
    for play in plays:
        harness.assert_nothing_left(cluster, play.drive)


def test_gang_goes_on_narrower_without_its_node_and_grows_when_one_joins(cluster, start, undisturbed):
    cluster.nodes["three"].die()  # nobody is to take the place of the one that is lost
    harness.until(lambda: cluster.num_alive() == 3, seconds=60)
    play = start("sums", steps=STEPS, nodes=2, least=1, cpus=CPUS)
    play.until("step-00012")
    node_without_attempt(cluster, play).die()
    play.until("formed-g002-of-1")
    known = play.noted("step")[-1]
    play.drive.until(lambda: play.noted("step")[-1] > known)  # nothing stands still while it is alone
    cluster.start()
    play.until("formed-g003-of-2")
    play.go()
    step = play.step()
    assert (step["digest"], step["attempts"]) == (undisturbed, 1)
    assert play.formings() == [
        "forming a gang of 2, generation 1",
        "forming a gang of 1 on 1 of 2 nodes, generation 2",
        "forming a gang of 2, generation 3",
    ]
    assert [event["cause"] for event in play.drive.events("exit")] == ["worker lost", "preempted"]
    walked = [name.split("-g")[0] for name in play.noted("step")]
    assert len(set(walked)) == STEPS
    assert len(walked) < STEPS + 5, "growing has repeated steps, or the loss more than those since the last kept"
    harness.assert_nothing_left(cluster, play.drive)


def node_without_attempt(cluster: Any, play: Play) -> Any:
    """Return a node that holds a rank of generation 1, and not the attempt that watches over it."""
    (attempt,) = [event for event in play.drive.events("placement") if "rank" not in event]
    nodes = [cluster.node_of(event["pid"]) for event in play.placed(1).values()]
    return next(node for node in nodes if node is not cluster.node_of(attempt["pid"]))


def test_rank_that_wakes_up_after_its_gang_was_replaced_commits_nothing(cluster, start):
    play = start("late")
    play.until("generation-1")
    old = psutil.Process(play.placed(1)[0]["pid"])
    node = cluster.node_of(old.pid)
    for each in [psutil.Process(node.process.pid), *node.family()]:  # it stands still, and the cluster gives it up
        each.suspend()
    try:
        play.until("generation-2")
        old.resume()
        play.until("refused")
    finally:
        node.die()
    step = play.step()
    assert play.noted("refused") == ["refused-0001-g1"]
    assert Value.open(Store.open(str(play.store), write=False).contents(_manifest(play, step))).value == 2
    kept = sorted(path.parent.name for path in play.store.rglob("checkpoints/step-*/MANIFEST.json"))
    assert kept == ["step-0002.g2"]
    harness.assert_nothing_left(cluster, play.drive)


def _manifest(play: Play, step: dict[str, Any]) -> Any:
    return Store.open(str(play.store), write=False).find([(step["step"], step["fingerprint"])])[step["fingerprint"]]


def test_stop_keeps_the_state_and_the_same_command_goes_on_there(cluster, start, undisturbed):
    play = start("sums", steps=STEPS, nodes=2, least=2)
    play.until("step-00012")
    command = [harness.MARIN, "stop", play.drive.run, "--store", str(play.store)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    ended = play.drive.end(PATIENCE)
    assert (ended.json["state"], ended.json["steps"][0]["state"]) == ("stopped", "stopped")
    harness.assert_nothing_left(cluster, play.drive)
    last = max(play.noted("step"))
    play.go()
    again = start("sums", steps=STEPS, nodes=2, least=2)
    assert again.step()["digest"] == undisturbed
    at = int(last.split("-")[1])
    assert f"formed-g002-of-2-rank-0-at-{at:05d}" in again.noted("formed")
    assert len(again.noted("step")) == STEPS, "steps were repeated"
