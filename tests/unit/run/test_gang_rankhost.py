"""The ranks of one node without a cluster: forked warm, ended to the last process, their deaths told apart."""

import importlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from marin.graph.resources import Resources
from marin.run.failure import Failure
from marin.run.order import GangOrder, Identity, pack
from marin.run.rank import RankEnd, Seat
from marin.run.rankhost import RankHost
from marin.run.retry import Cause

MODULES = str(Path(__file__).parents[2] / "cluster" / "modules")
Start = Callable[..., RankHost]


@pytest.fixture(scope="module")
def functions() -> ModuleType:
    if MODULES not in sys.path:
        sys.path.insert(0, MODULES)
    return importlib.import_module("gang_functions")


@pytest.fixture
def start(functions: ModuleType, tmp_path: Path) -> Iterator[Start]:
    hosts: list[RankHost] = []

    def start_host(fn: str, rendezvous: str = "Meeting", **config: object) -> RankHost:
        identity = Identity(str(tmp_path / "store"), "run", "gang", "gang", "f" * 64, "run-ffffffff-1")
        call = pack((getattr(functions, fn), getattr(functions, rendezvous), config), where="test")
        folder, checkpoints = str(tmp_path / "attempt"), str(tmp_path / "checkpoints")
        host = RankHost(GangOrder(identity, call, 2, Resources(ranks=2), folder, checkpoints))
        hosts.append(host)
        host.start()
        assert host.ready() is None
        return host

    yield start_host
    for host in hosts:
        host.close()


def form(host: RankHost, generation: int = 1, ranks: int = 2) -> None:
    host.fork(ranks)
    assert host.open() == ":1234"
    seats = [Seat(rank, ranks, rank, 0, generation, "127.0.0.1:1234", "here") for rank in range(ranks)]
    host.seat(seats, alone=True)


def ends_of(host: RankHost, number: int = 2, seconds: float = 20) -> list[RankEnd]:
    ends: list[RankEnd] = []
    until = time.monotonic() + seconds
    while len(ends) < number and time.monotonic() < until:
        ends += host.poll().ends
    return sorted(ends, key=lambda end: end.rank)


def alive(folder: Path) -> list[int]:
    pids = {int(path.name.split("-")[1]) for path in folder.glob("pid-*")}
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def test_host_forms_again_and_again_from_one_import(start: Start, tmp_path: Path):
    host = start("misbehave", folder=str(tmp_path), how="nothing")
    for generation in (1, 2, 3):
        form(host, generation)
        assert [end.value for end in ends_of(host)] == [[0, generation], [1, generation]]
        started = time.monotonic()
        assert host.end()
        assert time.monotonic() - started < 2
    assert len(list(tmp_path.glob("pid-*"))) == 6
    assert alive(tmp_path) == []


@pytest.mark.parametrize(
    ("how", "cause", "words"),
    [
        ("kill", Cause.LOST, "rank 1 of 2 on node here was killed by SIGKILL"),
        ("leave", Cause.LOST, "rank 1 of 2 on node here ended by itself with exit code 7"),
        ("exit", Cause.LOST, "rank 1 of 2 on node here ended by itself with exit code 3"),
        ("raise", Cause.EXCEPTION, "ValueError: no"),
        ("unpicklable", Cause.EXCEPTION, "pickle"),
    ],
)
def test_host_tells_how_a_rank_ended_and_ends_the_others_with_their_children(
    start: Start, tmp_path: Path, how: str, cause: Cause, words: str
):
    host = start("misbehave", folder=str(tmp_path), how=how, victim=1)
    form(host)
    (end,) = ends_of(host, 1)
    assert end.rank == 1
    assert end.failure is not None
    assert end.failure.cause is cause
    assert words in end.failure.message
    assert "rank-1.log" in end.failure.hint
    while not list(tmp_path.glob("pid-*-child")):
        host.poll(0.05)
    host.end()
    assert alive(tmp_path) == []


def test_host_stop_reaches_the_ranks_and_beats_come_back(start: Start, tmp_path: Path):
    host = start("misbehave", folder=str(tmp_path), how="wait", victim=-1)
    form(host)
    while len(host.poll().beats) < 2:
        pass
    host.dump_stacks()
    host.stop()
    assert [(end.stopped, end.value) for end in ends_of(host)] == [(True, [0, 1]), (True, [1, 1])]
    assert "in misbehave" in (tmp_path / "attempt/rank-0.log").read_text()


def test_host_rank_that_is_frozen_is_ended_too(start: Start, tmp_path: Path):
    host = start("misbehave", folder=str(tmp_path), how="wait", victim=-1)
    form(host)
    while len(list(tmp_path.glob("pid-*-child"))) < 2:
        host.poll(0.05)
    os.kill(next(int(path.name.split("-")[1]) for path in tmp_path.glob("pid-*-g1-r1")), signal.SIGSTOP)
    host.end()
    assert alive(tmp_path) == []


def test_host_whose_fork_server_dies_says_so_and_leaves_nothing(start: Start, tmp_path: Path):
    host = start("misbehave", folder=str(tmp_path), how="wait", victim=-1)
    form(host)
    while len(list(tmp_path.glob("pid-*-g1-*"))) < 2:
        host.poll(0.05)
    host._server.kill()
    ends = ends_of(host)
    assert [end.failure.message for end in ends if end.failure] == [
        f"rank {rank} of 2 on node here was killed with the process that had forked it" for rank in (0, 1)
    ]
    assert not host.end()
    assert [pid for pid in alive(tmp_path) if f"pid-{pid}-child" not in os.listdir(tmp_path)] == []


def test_host_that_is_gone_takes_its_ranks_with_it(start: Start, tmp_path: Path):
    host = start("misbehave", folder=str(tmp_path), how="wait", victim=-1)
    form(host)
    while len(list(tmp_path.glob("pid-*-child"))) < 2:
        host.poll(0.05)
    host._control.close()  # as the kernel does when a process ends
    until = time.monotonic() + 10
    while alive(tmp_path) and time.monotonic() < until:
        time.sleep(0.02)
    assert alive(tmp_path) == []
    host._ranks.clear()
    host._server.wait(10)


def test_host_meeting_point_that_cannot_be_opened_is_a_failure(start: Start, tmp_path: Path):
    host = start("end_at_once", rendezvous="refuse")
    host.fork(1)
    failure = host.open()
    assert isinstance(failure, Failure)
    assert failure.message == "OSError: no port is free"


def test_host_sets_the_communication_and_leaves_what_the_user_has_set(start: Start, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("TORCH_NCCL_TRACE_BUFFER_SIZE", "17")
    host = start("seat_of")
    form(host)
    seen = ends_of(host)[1].value
    assert (seen["GLOO_SOCKET_IFNAME"], seen["NCCL_SOCKET_IFNAME"]) == ("lo", "=lo")
    assert (seen["NCCL_DEBUG"], seen["TORCH_NCCL_TRACE_BUFFER_SIZE"]) == ("INFO", "17")
    assert "TORCH_FR_BUFFER_SIZE" not in seen
    assert (seen["RANK"], seen["WORLD_SIZE"], seen["MASTER_ADDR"]) == ("1", "2", "127.0.0.1")
    Path(seen["TORCH_FR_DUMP_TEMP_FILE"] + "1").write_bytes(b"collectives")
    host.end()
    assert (Path(host.order.folder) / "flight-1.g1").read_bytes() == b"collectives"
