"""What a preflight makes of nodes that differ, and what is said of attempts that wait."""

import dataclasses
import os
import sys

import pytest

from marin.base.errors import ClusterError
from marin.graph.artifact import Folder
from marin.graph.context import Context
from marin.graph.step import Step
from marin.run import machine
from marin.run.pending import FirstShard, Pending, Room, why_waiting
from marin.run.preflight import Facts, Finding, Needs, Node, compare, needs_of, refuse
from marin.store import EventWriter, Store
from marin.store.events import any_begun_under, begun
from marin.view.progress import RunProgress

GOOD = Facts(
    python="3.11.7",
    marin="0.1.0",
    marin_digest="aa",
    ray="2.60.0",
    torch="2.13.0",
    cuda_driver="550.54",
    nccl="2.27.3",
    modules={"words": "1", "words.more": "2"},
    shm_bytes=10**10,
    disk_bytes=10**11,
    open_files=65536,
)
WORKS = {"CPU": 8.0, "GPU": 2.0, "object_store_memory": 3e9}
NEEDS = Needs("s3://lab/marin", modules=("words", "words.more", "of_no_file"), gangs_on=frozenset({"CPU", "GPU"}))


class Gang(Step[Folder]):
    def run(self, ctx: Context) -> Folder:
        ctx.gang(len, rendezvous=len)
        return Folder.write(ctx.output)


def node(name: str = "b", **changes: object) -> Node:
    return Node(name, dataclasses.replace(GOOD, **changes), WORKS)


def found(*nodes: Node, here: Facts = GOOD, needs: Needs = NEEDS) -> list[Finding]:
    return compare(here, [node("a"), node("c"), *nodes], needs)


def test_preflight_equal_nodes_find_nothing():
    assert found(node()) == []


@pytest.mark.parametrize(
    ("changes", "severity", "words"),
    [
        ({"python": "3.12.7"}, "error", "Python 3.12.7, here 3.11.7"),
        ({"python": "3.11.9"}, "warning", "Python 3.11.9, here 3.11.7"),
        ({"ray": "2.59.0"}, "error", "Ray 2.59.0, here 2.60.0"),
        ({"marin": "0.2.0", "marin_digest": "bb"}, "error", "marin 0.2.0, here 0.1.0"),
        ({"marin_digest": "bb"}, "error", "marin 0.1.0 has other source files than here"),
        ({"modules": {"words": "1"}}, "error", "has no module words.more"),
        ({"modules": {"words": "1", "words.more": "3"}}, "error", "has another module words.more than here"),
        ({"torch": "2.12.0"}, "error", "torch 2.12.0, on most nodes 2.13.0"),
        ({"nccl": ""}, "error", "NCCL is not installed, on most nodes 2.27.3"),
        ({"cuda_driver": "535.1"}, "warning", "CUDA driver 535.1, on most nodes 550.54"),
        ({"store": "sees another store"}, "error", "sees another store"),
        ({"skew_seconds": 86_400.0}, "warning", "its clock is 24 h 0 min ahead of this machine's"),
        ({"skew_seconds": -7.0}, "warning", "its clock is 7.0 s behind this machine's"),
        ({"shm_bytes": 64 << 20}, "warning", "/dev/shm has 67.1 MB"),
        ({"open_files": 1024}, "warning", "may open 1024 files only"),
        ({"open_files": 64}, "error", "may open 64 files only"),
        ({"disk_bytes": 10**9}, "warning", "1.0 GB are free"),
    ],
)
def test_preflight_one_deviating_node_is_named_with_what_it_has(changes, severity, words):
    (finding,) = found(node(**changes))
    assert (finding.node, finding.severity) == ("b", severity)
    assert words in finding.what
    assert finding.hint


def test_preflight_what_the_driver_cannot_find_or_has_not_looked_for_is_no_difference():
    assert found(node(skew_seconds=4.9, shm_bytes=0, open_files=0, disk_bytes=0)) == []


def test_preflight_torch_counts_for_gangs_on_nodes_that_hold_ranks():
    other = node(torch="", nccl="", cuda_driver="")
    assert found(other, needs=Needs("s3://lab/marin")) == []
    assert found(dataclasses.replace(other, has={"memory": 1e9})) == []
    assert [finding.subject for finding in found(other)] == ["torch", "nccl", "cuda"]


def test_preflight_builds_of_one_torch_differ_between_nodes_with_gpus_alone():
    built = node(torch="2.13.0+cpu", nccl="")
    assert [finding.subject for finding in found(built)] == ["torch", "nccl"]
    assert found(dataclasses.replace(built, has={"CPU": 8.0})) == []
    (finding,) = found(dataclasses.replace(node(torch="2.12.0+cpu", nccl=""), has={"CPU": 8.0}))
    assert finding.what == "torch 2.12.0, on most nodes 2.13.0"


def test_preflight_driver_with_another_torch_is_only_told():
    laptop = dataclasses.replace(GOOD, torch="2.12.0", nccl="", cuda_driver="")
    assert {(finding.subject, finding.severity) for finding in found(here=laptop)} == {("torch", "warning")}
    assert found(here=dataclasses.replace(laptop, torch="2.13.0+cpu")) == []
    assert found(here=dataclasses.replace(laptop, torch="")) == []


def test_preflight_small_shared_memory_matters_for_gpus_alone():
    small = node(shm_bytes=2 * 10**9)
    assert [finding.subject for finding in found(small)] == ["shm"]
    assert found(small, needs=dataclasses.replace(NEEDS, gangs_on=frozenset({"CPU"}))) == []


def test_preflight_silent_node_is_a_warning_unless_all_are():
    silent = Node("b", problem="did not answer within 20 s", silent=True)
    assert [finding.severity for finding in found(silent)] == ["warning"]
    assert [finding.severity for finding in compare(GOOD, [silent], NEEDS)] == ["error"]


def test_refuse_errors_name_every_node_with_all_it_has_and_a_hint():
    findings = found(node("b", python="3.12.1", store="sees another store"), Node("d", problem="cannot run workers"))
    with pytest.raises(ClusterError) as raised:
        refuse(findings, 4)
    assert raised.value.what == (
        "2 of 4 nodes cannot take part: b: Python 3.12.1, here 3.11.7; sees another store; d: cannot run workers"
    )
    assert "one image" in raised.value.hint
    assert "every node sees" in raised.value.hint


def test_refuse_warnings_are_one_line_a_kind_and_name_a_few_nodes():
    nodes = [node(f"n{index:02d}", open_files=1024) for index in range(12)]
    (line,) = refuse(found(*nodes), 14)
    assert line.startswith("n00, n01, n02, n03, n04, n05, n06, n07, and 4 more: a process may open 1024 files only")
    assert "ulimit" in line


def test_facts_of_another_marin_are_read_as_far_as_they_are_known():
    assert Facts.from_json({"python": "3.11.7", "colour": "red"}) == Facts(python="3.11.7")


def test_needs_of_a_plan_names_its_modules_without_marins():
    needs = needs_of([Gang().on(gpus=1), Gang()], "file:///x")
    assert needs.modules == (__name__,)
    assert needs.gangs_on == {"CPU", "GPU"}
    assert needs_of([Gang().on(ranks=2)], "x").gangs_on == {"CPU"}


def test_gather_finds_versions_and_files_without_importing(tmp_path, monkeypatch):
    (tmp_path / "of_mine").mkdir()
    (tmp_path / "of_mine" / "deep.py").write_text("raise SystemExit\n")
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    facts = machine.gather(["of_mine.deep", "surely_not_there", "of_mine.nor_this"])
    assert set(facts.modules) == {"of_mine.deep"}
    assert not [name for name in set(sys.modules) - before if name.startswith(("of_mine", "torch", "ray"))]
    assert facts.python == ".".join(map(str, sys.version_info[:3]))
    assert facts.ray
    assert facts.disk_bytes > 0
    (tmp_path / "of_mine" / "deep.py").write_text("raise SystemExit(1)\n")
    assert machine.gather(["of_mine.deep"]).modules != facts.modules


def test_answer_of_a_node_that_sees_the_store_can_be_read(tmp_path):
    question = tmp_path / "question"
    assert "sees another store" in machine.answer(str(question), "asked", str(tmp_path / "reply"))
    question.write_text("asked by somebody else")
    assert "sees another store" in machine.answer(str(question), "asked", str(tmp_path / "reply"))
    assert not (tmp_path / "reply").exists()
    question.write_text("asked")
    assert machine.answer(str(question), "asked", str(tmp_path / "reply")) == ""
    assert (tmp_path / "reply").read_text() == "asked"
    assert "cannot write to the store" in machine.answer(str(question), "asked", str(question / "below"))


def test_cuda_driver_is_read_from_the_drivers_own_file(tmp_path, monkeypatch):
    told = tmp_path / "version"
    monkeypatch.setattr(machine, "DRIVER_FILE", told)
    told.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\nGCC 12\n")
    assert machine.cuda_driver() == "550.54.15"
    told.write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.10  Release Build\n")
    assert machine.cuda_driver() == "570.86.10"


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


ROOM = Room(free={"CPU": 1.0}, nodes=[{"CPU": 2.0}, {"CPU": 2.0}])


def waits(bundle: dict[str, float], room: Room, *, seconds: float = 6) -> dict[str, str]:
    clock = Clock()
    pending = Pending(clock)
    pending.add("a", bundle)
    clock.now = seconds
    return pending.say(pending.due(), room)


@pytest.mark.parametrize(
    ("bundle", "room", "words"),
    [
        ({"CPU": 2}, ROOM, "waiting for 2 CPUs: cluster has 1 of 4 CPUs free"),
        (
            {"CPU": 1, "GPU": 1},
            Room({"CPU": 4}, [{"CPU": 4, "GPU": 2}]),
            "waiting for 1 CPU, 1 GPU: cluster has 0 of 2 GPUs free",
        ),
        (
            {"CPU": 4},
            ROOM,
            "waiting for 4 CPUs: no node has that any more; the cluster has 2 nodes (2 CPUs; 2 CPUs)",
        ),
        (
            {"GPU": 8},
            Room({}, [{"CPU": 2}], grows=True),
            "waiting for the autoscaler: 8 GPUs on one node; the cluster has 1 node (2 CPUs)",
        ),
        (
            {"CPU": 1, "memory": 8e9},
            Room({"CPU": 1, "memory": 1e9}, [{"CPU": 2, "memory": 16e9}]),
            "waiting for 1 CPU, 8.0 GB of memory: cluster has 1.0 GB of 16.0 GB of memory free",
        ),
    ],
)
def test_pending_attempt_says_what_it_waits_for_and_what_there_is(bundle, room, words):
    assert waits(bundle, room) == {"a": words}


def test_pending_attempt_with_room_is_not_spoken_of_until_a_worker_starts_slowly():
    free = Room({"CPU": 2.0}, [{"CPU": 2.0}])
    assert waits({"CPU": 2}, free) == {}
    assert waits({"CPU": 2}, free, seconds=21) == {"a": "waiting for a worker process to start"}
    assert waits({"CPU": 0}, ROOM, seconds=21) == {"a": "waiting for a worker process to start"}
    assert "on one node" in waits({"CPU": 2}, Room({"CPU": 2.0}, ROOM.nodes), seconds=21)["a"]


def test_pending_is_asked_about_after_a_while_and_told_again_when_it_changes_in_kind():
    clock = Clock()
    pending = Pending(clock)
    pending.add("a", {"CPU": 2})
    clock.now = 4.9
    assert pending.due() == []
    clock.now = 5
    assert pending.due() == ["a"]
    assert pending.due() == []
    assert len(pending.say(["a"], ROOM)) == 1
    clock.now = 20
    assert pending.due() == ["a"]
    assert pending.say(["a"], Room({"CPU": 0.0}, ROOM.nodes)) == {}  # a number is no news
    assert len(pending.say(["a"], Room({}, [{"GPU": 1}], grows=True))) == 1
    clock.now = 60
    assert len(pending.say(pending.due(), ROOM)) == 1
    pending.forget(["a"])
    clock.now = 90
    assert (pending.due(), pending.say(["a"], ROOM)) == ([], {})


def test_begun_knows_the_attempts_that_left_a_sign(tmp_path):
    store = Store.open(str(tmp_path / "store"), write=True)
    writer = EventWriter(store.url, "run-1", "run-1-aa-1")
    writer.emit("placement", pid=os.getpid())
    writer.close()
    assert begun(store.url, "run-1", ["run-1-aa-1", "run-1-aa-2"]) == {"run-1-aa-1"}
    assert begun(store.url, "run-2", ["run-1-aa-1"]) == set()


def test_map_says_what_its_shards_wait_for_until_one_begins():
    clock, said, begun = Clock(), [], []
    first = FirstShard(
        lambda kind, **fields: said.append((kind, fields)),
        lambda: bool(begun),
        lambda seconds: why_waiting({"CPU": 2}, ROOM, seconds),
        clock,
    )
    for clock.now in (0, 4, 6, 7, 12):
        first.look()
    waiting = {"state": "waiting", "detail": "shards are waiting for 2 CPUs: cluster has 1 of 4 CPUs free"}
    assert said == [("state", waiting)]
    begun.append(True)
    for clock.now in (18, 24, 30):
        first.look()
    first.begin()
    assert said[1:] == [("state", {"state": "running"})]


def test_begun_under_an_attempt_are_its_shards_not_itself(tmp_path):
    store = Store.open(str(tmp_path / "store"), write=True)
    for name, expected in (("run-1-aa-1", False), ("run-1-aa-12", False), ("run-1-aa-1-0fe2", True)):
        writer = EventWriter(store.url, "run-1", name)
        writer.emit("placement", pid=os.getpid())
        writer.close()
        assert any_begun_under(store.url, "run-1", "run-1-aa-1") is expected


def test_progress_shows_why_a_step_waits_until_it_begins():
    progress = RunProgress.of([("train", "train")])
    base = {"name": "train", "kind": "state"}
    waiting = {**base, "state": "waiting", "attempt": "a-1", "pending": True, "detail": "waiting for 2 CPUs"}
    (changed,) = progress.apply([waiting])
    assert (changed.state, changed.detail) == ("waiting", "waiting for 2 CPUs")
    running = {**base, "state": "running", "attempt": "a-1"}
    progress.apply([running, waiting])  # said a moment too late
    row = progress.rows["train"]
    assert (row.state, row.detail, row.attempts) == ("running", "", 1)
