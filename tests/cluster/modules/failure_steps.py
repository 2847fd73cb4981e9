"""A plain step, a map and a gang for the failure table: each piece of work is noted, and some of it can be told to err.

What goes wrong comes from outside (a signal, a lost node) or from `trouble`, which is placement: results and
fingerprints are those of an undisturbed run. `folder` is a scratch folder outside the store.
"""

import json
import os
import socket
import threading
import time
import uuid
from pathlib import Path
from typing import Any

from marin import Context, Step, Value, fs, pipeline
from marin.base.config import Placement
from marin.base.json import Json
from marin.graph.artifact import Sharded
from marin.graph.context import Member
from marin.graph.files import Output, Shard

NUM_SHARDS, NUM_STEPS, KEEP_EVERY = 12, 12, 3
BATCH = 6
COLLECTIVE_SECONDS = 120.0
STEP_SECONDS = 0.15
"""Long enough for beats to be seen: until the first step has moved, a gang is given ten times its patience."""
MEGABYTE = 2**20


class Plain(Step[Value[int]]):
    """A number that takes a while: it waits for a file `go`, unless told otherwise."""

    number: int
    folder: Placement[str]
    trouble: Placement[str] = ""

    def run(self, ctx: Context) -> Value[int]:
        note(self.folder, f"plain-{self.number}")
        err(self.folder, self.trouble, "plain")
        wait_for(self.folder, "go")
        return Value.write(ctx.output, self.number)


class Squares(Step[Sharded]):
    """The squares of 0 to 11, one a shard; those from `hold` on wait for a file `go`."""

    folder: Placement[str]
    hold: Placement[int] = NUM_SHARDS
    trouble: Placement[str] = ""

    def run(self, ctx: Context) -> Sharded:
        note(self.folder, "map")
        shards = [Shard(f"{i:02d}", digest=f"number {i}") for i in range(NUM_SHARDS)]
        mapped = ctx.map(square, shards, folder=self.folder, hold=self.hold, trouble=self.trouble)
        return Sharded.write(ctx.output, shards=mapped.shards, meta={"n": NUM_SHARDS})


def square(shard: Shard, output: Output, *, folder: str, hold: int, trouble: str) -> int:
    """Return a square."""
    number = int(shard.name)
    note(folder, f"shard-{shard.name}")
    err(folder, trouble, f"shard-{shard.name}")
    if number >= hold:
        wait_for(folder, "go")
    output.write("square.txt", str(number**2).encode())
    return number**2


class Walk(Step[Value[int]]):
    """A gang that walks twelve steps, each with a sum over all ranks, and keeps where it is every three."""

    folder: Placement[str]
    hold: Placement[int] = NUM_STEPS
    trouble: Placement[str] = ""

    def run(self, ctx: Context) -> Value[int]:
        note(self.folder, "gang")
        config = {"folder": self.folder, "kept": ctx.checkpoints, "hold": self.hold, "trouble": self.trouble}
        return Value.write(ctx.output, ctx.gang(walk, rendezvous=Meeting, **config)[0])


class Meeting:
    """Rank 0's listening socket."""

    def __init__(self) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.address = "{}:{}".format(*self.socket.getsockname())


def walk(member: Member, *, folder: str, kept: str, hold: int, trouble: str) -> int:
    """Walk from what was kept last; return the state at the end. At step `hold` all wait for a file `go`."""
    step, state = last_kept(kept)
    with Sums(member) as sums:
        while step < NUM_STEPS:
            member.beat("walk", step)
            note(folder, f"step-{step:02d}-rank-{member.rank}-generation-{member.generation}")
            err(folder, trouble, f"rank-{member.rank}@{step}")
            if step == hold:
                wait_for(folder, "go", member)
            time.sleep(STEP_SECONDS)
            mine = sum((step + 1) * (item + 1) for item in range(member.rank, BATCH, member.world_size))
            state = (31 * state + sums.of(mine, member.stopping)) % 1_000_003
            step += 1
            if step % KEEP_EVERY == 0 or sums.stopping:
                keep(member, kept, step, state)
            if sums.stopping:
                return state
    return state


def last_kept(kept: str) -> tuple[int, int]:
    """Return the step to go on with, and the state before it."""
    _, entries = fs.glob(fs.join(kept, "step-*", "MANIFEST.json"))
    found = [json.loads(fs.read(entry.url)) for entry in entries]
    return max(((each["step"], each["state"]) for each in found), default=(0, 1))


def keep(member: Member, kept: str, step: int, state: int) -> None:
    """Write the state, on rank 0."""
    if member.rank == 0 and member.may_commit():
        record: Json = {"step": step, "state": state}
        fs.create(fs.join(kept, f"step-{step:02d}", "MANIFEST.json"), json.dumps(record).encode())


class Sums:
    """Sums over all ranks by way of rank 0; `stopping` once a rank was asked to stop, at the same step on all."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._peers: list[Any] = []
        self.stopping = False

    def __enter__(self) -> "Sums":
        if self._member.rank == 0:
            listening = self._member.hosted.socket  # type: ignore[union-attr]  # a Meeting
            listening.settimeout(COLLECTIVE_SECONDS)
            found = [listening.accept()[0] for _ in range(self._member.world_size - 1)]
        else:
            host, _, port = self._member.rendezvous.rpartition(":")
            found = [socket.create_connection((host, int(port)))]
        for peer in found:
            peer.settimeout(COLLECTIVE_SECONDS)
        self._peers = [peer.makefile("rw") for peer in found]
        return self

    def __exit__(self, *_: object) -> None:
        for peer in self._peers:
            peer.close()

    def of(self, number: int, stopping: bool) -> int:
        """Return the sum of all ranks' numbers."""
        mine = (number, stopping)
        if self._member.rank:
            _send(self._peers[0], mine)
            total, self.stopping = _receive(self._peers[0])
            return total
        every = [mine, *(_receive(peer) for peer in self._peers)]
        result = (sum(value for value, _ in every), any(flag for _, flag in every))
        for peer in self._peers:
            _send(peer, result)
        self.stopping = result[1]
        return result[0]


def _send(peer: Any, value: tuple[int, bool]) -> None:
    peer.write(f"{value[0]} {int(value[1])}\n")
    peer.flush()


def _receive(peer: Any) -> tuple[int, bool]:
    words = peer.readline().split()
    if len(words) != 2:
        raise ConnectionError("a peer has gone")
    return int(words[0]), words[1] == "1"


def err(folder: str, trouble: str, who: str) -> None:
    """Do what `trouble` says, such as `eat:plain,absent:rank-1@4`: each once for a scratch folder, save exceptions."""
    for each in trouble.split(","):
        kind, _, victim = each.partition(":")
        if victim == who and (kind == "raise" or first(folder, f"erred-{each}")):
            TROUBLES[kind](who)


def absent(who: str) -> None:
    """Never come back: the peers wait in a collective."""
    threading.Event().wait()


def load(who: str) -> None:
    """Ask a loader for its next batch."""
    next(iter(stuck_loader()))


def stuck_loader() -> Any:
    """Yield nothing, for ever: a loader whose storage does not answer."""
    threading.Event().wait()
    yield 0


def eat(who: str) -> None:
    """Take memory until somebody ends this process."""
    eaten = []
    while True:
        eaten.append(b"x" * (16 * MEGABYTE))


def run_out(who: str) -> None:
    """Fail to get memory."""
    raise MemoryError(f"no room for {who}")


def be_unlucky(who: str) -> None:
    """Raise what a user's code raises."""
    raise ValueError(f"{who} has no luck")


TROUBLES = {"absent": absent, "loader": load, "eat": eat, "memory": run_out, "raise": be_unlucky}


def note(folder: str, what: str) -> None:
    """Leave one file for each time something is done: `WHAT.PID.ID`."""
    Path(folder, f"{what}.{os.getpid()}.{uuid.uuid4().hex[:6]}").touch()


def first(folder: str, what: str) -> bool:
    """Whether nobody asked for this before."""
    try:
        Path(folder, what).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def wait_for(folder: str, what: str, member: Member | None = None) -> None:
    """Return once a file is there, or the rank was asked to stop."""
    while not Path(folder, what).exists() and not (member is not None and member.stopping):
        time.sleep(0.02)


@pipeline
def plain(folder: str, trouble: str = "", retries: int = 3) -> Step[Any]:
    """The plain step."""
    return Plain(number=7, folder=folder, trouble=trouble).on(retries=retries)


@pipeline
def gang(
    folder: str, trouble: str = "", hold: int = NUM_STEPS, ranks: int = 2, retries: int = 3, hang_after: float = 60
) -> Step[Any]:
    """The gang."""
    walk = Walk(folder=folder, hold=hold, trouble=trouble)
    return walk.on(ranks=ranks, retries=retries, hang_after=hang_after)


@pipeline
def all_kinds(
    folder: str,
    trouble: str = "",
    hold: int = NUM_STEPS,
    ranks: int = 2,
    retries: int = 3,
    hang_after: float = 60,
) -> list[Step[Any]]:
    """A plain step, a map and a gang, side by side; the last two shards and steps wait if `hold` is 10."""
    return [
        *plain(folder=folder, trouble=trouble, retries=retries),
        Squares(folder=folder, hold=hold, trouble=trouble).on(retries=retries),
        *gang(folder=folder, hold=hold, trouble=trouble, ranks=ranks, retries=retries, hang_after=hang_after),
    ]


@pipeline
def hungry(folder: str, trouble: str, cpus: int = 4) -> list[Step[Any]]:
    """A plain step and a gang of one that only a large node can hold."""
    walk = Walk(folder=folder, trouble=trouble).on(cpus=cpus, ranks=1)
    return [Plain(number=7, folder=folder, trouble=trouble).on(cpus=cpus), walk]
