"""Steps for a cluster of hosts: a map of slow shards, and a gang whose ranks really talk over the network.

`folder` is a scratch folder outside the store: each piece of work leaves a file there, named for who did it. The gang
knows no torch: its ranks add up their numbers through a socket of rank 0, as a collective would, so that a cut network
holds them up; their state is written by rank 0 every few steps, behind the generation fence.
"""

import contextlib
import json
import os
import socket
import struct
import time
import uuid
from pathlib import Path
from typing import Any

from marin import Context, Step, Value, fs, pipeline
from marin.base.config import Placement
from marin.graph.artifact import Sharded
from marin.graph.context import Member
from marin.graph.files import Output, Shard

KEEP_EVERY = 5
BATCH = 12
COLLECTIVE_SECONDS = 60.0
PRIME = 2**31 - 1


class Squares(Step[Sharded]):
    """The squares of 0 to n - 1, one a shard."""

    n: int
    folder: Placement[str]
    seconds: Placement[float] = 0.2
    hold: Placement[int] = 10**9

    def run(self, ctx: Context) -> Sharded:
        shards = [Shard(f"{i:04d}", digest=f"number {i}") for i in range(self.n)]
        mapped = ctx.map(square, shards, folder=self.folder, seconds=self.seconds, hold=self.hold)
        return Sharded.write(ctx.output, shards=mapped.shards, meta={"n": self.n})


def square(shard: Shard, output: Output, *, folder: str, seconds: float, hold: int) -> int:
    """Return a square, slowly; shards from `hold` on wait until a file `go` is there."""
    note(folder, f"shard-{shard.name}")
    time.sleep(seconds)
    if int(shard.name) >= hold:
        wait_for(folder, "go")
    number = int(shard.name) ** 2
    output.write("square.txt", str(number).encode())
    return number


class Walk(Step[Value[int]]):
    """A gang that walks `steps` steps, each with a sum over all ranks; the walk goes on where it was kept.

    The result does not depend on the number of ranks, as each takes its share of one global batch.
    """

    steps: int
    folder: Placement[str]
    seconds: Placement[float] = 0.1
    after: Placement[str] = ""
    hold: Placement[int] = -1

    def run(self, ctx: Context) -> Value[int]:
        note(self.folder, "attempt")
        if self.after:
            wait_for(self.folder, self.after)
        config = {
            "steps": self.steps,
            "folder": self.folder,
            "seconds": self.seconds,
            "kept": ctx.checkpoints,
            "hold": self.hold,
        }
        return Value.write(ctx.output, ctx.gang(walk, rendezvous=Meeting, **config)[0])


class Meeting:
    """Rank 0's listening socket, on this host's own address."""

    def __init__(self) -> None:
        self.socket = socket.create_server((own_address(), 0))
        self.address = "{}:{}".format(*self.socket.getsockname()[:2])


def walk(member: Member, *, steps: int, folder: str, seconds: float, kept: str, hold: int) -> int:
    """Walk from what was kept last; return the state at the end. Generation 1 waits before step `hold` for the next."""
    first, state = last_kept(kept)
    note(folder, f"generation-{member.generation}")
    with Ring(member) as ring:
        for step in range(first, steps):
            member.beat("walk", step)
            time.sleep(seconds)
            if step == hold and member.generation == 1:
                wait_for(folder, "generation-2")
            mine = range(member.rank, BATCH, member.world_size)
            state = (31 * state + ring.sum(sum(step * item + 1 for item in mine))) % PRIME
            if member.rank == 0:
                note(folder, f"step-{step:04d}-g{member.generation}")
                if (step + 1) % KEEP_EVERY == 0:
                    keep(member, kept, step + 1, state, folder)
    return state


def last_kept(kept: str) -> tuple[int, int]:
    """Return the step to go on with, and the state before it."""
    _, entries = fs.glob(fs.join(kept, "step-*", "MANIFEST.json"))
    found = [json.loads(fs.read(entry.url)) for entry in entries]
    return max(((each["step"], each["state"]) for each in found), default=(0, 1))


def keep(member: Member, kept: str, step: int, state: int, folder: str) -> None:
    """Write the state, unless a later generation is at work: that is noted, and ends this one."""
    if not member.may_commit():
        note(folder, f"refused-{step:04d}-g{member.generation}")
        raise RuntimeError(f"generation {member.generation} was replaced")
    record = {"step": step, "state": state, "generation": member.generation, "host": socket.gethostname()}
    fs.create(fs.join(kept, f"step-{step:04d}.g{member.generation}", "MANIFEST.json"), json.dumps(record).encode())


class Ring:
    """Sums over all ranks, by way of rank 0; a peer that stays away ends it, as a process group's timeout would."""

    def __init__(self, member: Member, *, patience: float = COLLECTIVE_SECONDS) -> None:
        self._member = member
        self._patience = patience
        self._peers: list[socket.socket] = []

    def __enter__(self) -> "Ring":
        if self._member.rank == 0:
            listening = self._member.hosted.socket  # type: ignore[union-attr]  # a Meeting
            listening.settimeout(self._patience)
            self._peers = [listening.accept()[0] for _ in range(self._member.world_size - 1)]
        else:
            host, _, port = self._member.rendezvous.rpartition(":")
            self._peers = [socket.create_connection((host, int(port)), timeout=self._patience)]
        for peer in self._peers:
            peer.settimeout(self._patience)
        return self

    def __exit__(self, *_: object) -> None:
        for peer in self._peers:
            peer.close()

    def sum(self, number: int) -> int:
        """Return the sum of all ranks' numbers."""
        if self._member.rank:
            _send(self._peers[0], number)
            return _receive(self._peers[0])
        total = number + sum(_receive(peer) for peer in self._peers)
        for peer in self._peers:
            _send(peer, total)
        return total


def _send(peer: socket.socket, number: int) -> None:
    peer.sendall(struct.pack("!q", number))


def _receive(peer: socket.socket) -> int:
    data = b""
    while len(data) < 8:
        piece = peer.recv(8 - len(data))
        if not piece:
            raise ConnectionError("the other rank has gone")
        data += piece
    return int(struct.unpack("!q", data)[0])


def own_address() -> str:
    """Return the address that this host has towards the others."""
    with contextlib.closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as asked:
        try:
            asked.connect(("10.57.0.1", 9))
        except OSError:
            return "127.0.0.1"
        return str(asked.getsockname()[0])


def note(folder: str, what: str) -> None:
    """Leave one file for each time something is done."""
    if folder:
        Path(folder, f"{what}.{socket.gethostname()}.{os.getpid()}.{uuid.uuid4().hex[:6]}").touch()


def wait_for(folder: str, what: str) -> None:
    """Wait until something was noted."""
    while not any(Path(folder).glob(f"{what}*")):
        time.sleep(0.05)


@pipeline
def squares(folder: str = "", n: int = 40, seconds: float = 0.2, hold: int = 10**9) -> Step[Any]:
    """A map whose shards leave a third of a host free."""
    return Squares(n=n, folder=folder, seconds=seconds, hold=hold).on(cpus=2)


@pipeline
def walking(
    folder: str = "", steps: int = 50, pace: float = 0.1, ranks: int = 2, after: str = "", wait: int = -1
) -> Step[Any]:
    """A gang."""
    return Walk(steps=steps, folder=folder, seconds=pace, after=after, hold=wait).on(ranks=ranks)


@pipeline
def both(
    folder: str = "", n: int = 40, hold: int = 10**9, steps: int = 50, pace: float = 0.1, ranks: int = 2, wait: int = -1
) -> list[Step[Any]]:
    """A map and a gang at once, beside each other on every host."""
    gang = walking(folder=folder, steps=steps, pace=pace, ranks=ranks, wait=wait, after="shard-0001")
    return [*squares(folder=folder, n=n, hold=hold), *gang]
