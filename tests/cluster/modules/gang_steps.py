"""Gangs for a cluster of several nodes: who sits where, sums that any width gives, ranks that outlive their gang.

No torch. `folder` is a scratch folder outside the store, in which each piece of work leaves a file named for who did
it. Numbers are added through a socket of rank 0 (host_steps.Ring), as a collective would.
"""

import os
import socket
import time
from pathlib import Path
from typing import Any

import numpy as np
from host_steps import BATCH, KEEP_EVERY, PRIME, Ring, keep, last_kept, note, wait_for

from marin import AdamW, Context, Decoder, Sequences, Step, Train, Value, pipeline
from marin.base.config import Placement
from marin.data.token_files import write_array
from marin.graph.context import Member
from marin.graph.files import Output, Shard

TOGETHER_SECONDS = 600.0  # that many gangs may take to stand, on two cores
VARIABLES = ("RANK", "LOCAL_RANK", "NODE_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class Meeting:
    """Rank 0's listening socket on every interface; its address names no host, as that of training."""

    def __init__(self) -> None:
        self.socket = socket.create_server(("", 0))
        self.address = f":{self.socket.getsockname()[1]}"


class Seats(Step[Value[list[Any]]]):
    """Where each rank of a gang sits; its ranks wait until as many gangs stand as are said."""

    number: int
    folder: Placement[str]
    gangs: Placement[int] = 1

    def run(self, ctx: Context) -> Value[list[Any]]:
        config = {"number": self.number, "folder": self.folder, "gangs": self.gangs}
        return Value.write(ctx.output, ctx.gang(sit, rendezvous=Meeting, **config))


def sit(member: Member, *, number: int, folder: str, gangs: int) -> dict[str, Any]:
    """Return this rank's variables, its parent, its port if it is rank 0, and the sum of all ranks' numbers."""
    with Ring(member, patience=TOGETHER_SECONDS) as ring:
        total = ring.sum(1000 * number + member.rank)
        if member.rank == 0:
            note(folder, f"stands-{number:04d}")
            wait_for_all(folder, gangs)
        ring.sum(0)
    port = member.hosted.socket.getsockname()[1] if member.rank == 0 else None  # type: ignore[union-attr]
    return {**{name: os.environ[name] for name in VARIABLES}, "server": os.getppid(), "sum": total, "port": port}


class Sum(Step[Value[int]]):
    """A sum over `steps` batches of twelve numbers, each split over the ranks there are; slow until `go` is noted."""

    steps: int
    folder: Placement[str]
    seconds: Placement[float] = 0.1

    def run(self, ctx: Context) -> Value[int]:
        config = {"steps": self.steps, "folder": self.folder, "seconds": self.seconds, "kept": ctx.checkpoints}
        return Value.write(ctx.output, ctx.gang(add_up, rendezvous=Meeting, **config)[0])


def add_up(member: Member, *, steps: int, folder: str, seconds: float, kept: str) -> int:
    """Return the sum, from what was kept last; all ranks keep it and end at the step at which any is asked to stop."""
    step, state = last_kept(kept)
    note(folder, f"formed-g{member.generation:03d}-of-{member.world_size}-rank-{member.rank}-at-{step:05d}")
    with Ring(member) as ring:
        while step < steps:
            member.beat("add", step)
            if not any(Path(folder).glob("go*")):
                time.sleep(seconds)
            mine = range(member.rank, BATCH, member.world_size)
            state = (31 * state + ring.sum(sum(step * item + 1 for item in mine))) % PRIME
            step += 1
            stops = ring.sum(int(member.stopping))
            if member.rank == 0:
                note(folder, f"step-{step:05d}-g{member.generation:03d}")
                if stops or step % KEEP_EVERY == 0:
                    keep(member, kept, step, state, folder)
            if stops:
                break
    return state


class Late(Step[Value[int]]):
    """A gang whose ranks of generation 1 keep their state only once they were replaced."""

    folder: Placement[str]

    def run(self, ctx: Context) -> Value[int]:
        return Value.write(
            ctx.output, ctx.gang(keep_late, rendezvous=Meeting, folder=self.folder, kept=ctx.checkpoints)[0]
        )


def keep_late(member: Member, *, folder: str, kept: str) -> int:
    """Keep a state that tells the generation, and return what is kept in the end."""
    member.beat("keep", 0)
    note(folder, f"generation-{member.generation}")
    if member.generation == 1:
        wait_for(folder, "generation-2")
    keep(member, kept, member.generation, member.generation, folder)
    wait_for(folder, "refused")
    return last_kept(kept)[1]


class Rows(Step[Sequences]):
    """Noise to train on."""

    rows: int = 512
    context: int = 64
    vocab_size: int = 256

    def run(self, ctx: Context) -> Sequences:
        rows = [Shard("0", digest=f"{self.rows} {self.context} {self.vocab_size}")]
        size = {"rows": self.rows, "context": self.context, "vocab_size": self.vocab_size}
        shards = ctx.map(write_rows, rows, **size).shards
        ctx.output.write("tokenizer.json", b"{}")
        meta = {"context": self.context, "vocab_size": self.vocab_size, "eos_id": 0}
        return Sequences.write(ctx.output, shards=shards, meta=meta)


def write_rows(shard: Shard, output: Output, *, rows: int, context: int, vocab_size: int) -> dict[str, Any]:
    """Write one shard of noise."""
    array = np.random.default_rng(0).integers(0, vocab_size, (rows, context + 1)).astype("<u2")
    write_array(output, "tokens.npy", [array], array.shape, array.dtype)
    return {"context": context, "rows": rows, "targets": rows * context, "padded_row": None, "padding": 0}


def wait_for_all(folder: str, gangs: int) -> None:
    """Wait until so many gangs stand at once."""
    while len(list(Path(folder).glob("stands-*"))) < gangs:
        time.sleep(0.05)


@pipeline
def seats(folder: str = "", gangs: int = 12) -> list[Step[Any]]:
    """Gangs of one to six ranks, all at once."""
    kinds = ({"ranks": 1}, {"ranks": 2}, {"nodes": 2})
    made = [Seats(number=i, folder=folder, gangs=gangs).on(cpus=0.1, **kinds[i % 3]) for i in range(gangs - 1)]
    made.append(Seats(number=gangs - 1, folder=folder, gangs=gangs).on(cpus=0.1, ranks=6, nodes=3))
    return [step.named(f"gang-{step.number:04d}") for step in made]


@pipeline
def sums(
    folder: str = "", steps: int = 50, nodes: int = 2, least: int = 2, shrink: float = 2, cpus: float = 1
) -> Step[Any]:
    """A sum by one rank a node, on as few nodes as `least`."""
    return Sum(steps=steps, folder=folder).on(nodes=nodes, min_nodes=least, shrink_after=shrink, cpus=cpus)


@pipeline
def late(folder: str = "") -> Step[Any]:
    """One rank."""
    return Late(folder=folder)


@pipeline
def training(steps: int = 100_000) -> Step[Any]:
    """A small training by two ranks that keeps its state every second and tells each step."""
    rows = Rows()
    return Train(
        data=rows,
        model=Decoder(layers=4, width=64, heads=4),
        optimizer=AdamW(lr=0.001),
        tokens=steps * 8 * rows.context,
        batch=8,
        checkpoint_seconds=1,
        log_every=1,
    ).on(ranks=2)
