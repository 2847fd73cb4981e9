"""Steps for the engine's tests: importable by workers, and with trouble to order.

`folder` is a scratch folder outside the store: calls are counted there, and gates are files that appear there.
"""

import os
import signal
import sys
import time
import uuid
from pathlib import Path

from marin.base.config import Placement
from marin.graph.artifact import Folder, Sharded, Value
from marin.graph.context import Context, Member
from marin.graph.files import Output, Shard
from marin.graph.step import Step


class Squares(Step[Sharded]):
    """The squares of 0 to n - 1, one a shard."""

    n: int
    folder: Placement[str]
    trouble: Placement[str] = ""

    def run(self, ctx: Context) -> Sharded:
        shards = [Shard(f"{i:04d}", digest=f"number {i}") for i in range(self.n)]
        mapped = ctx.map(square, shards, folder=self.folder, trouble=self.trouble)
        ctx.metric(largest=max(mapped))
        return Sharded.write(ctx.output, shards=mapped.shards, meta={"n": self.n})


class Total(Step[Value[int]]):
    """The sum of the squares."""

    squares: Step[Sharded]

    def run(self, ctx: Context) -> Value[int]:
        print("adding up")
        return Value.write(ctx.output, sum(shard.value for shard in ctx.load(self.squares).shards))


class Fails(Step[Folder]):
    """Raises in a function of its own."""

    text: str = "no luck"

    def run(self, ctx: Context) -> Folder:
        return deep(self.text)


class Ends(Step[Folder]):
    """Raises what would end a process."""

    how: str

    def run(self, ctx: Context) -> Folder:
        if self.how == "interrupt":
            raise KeyboardInterrupt
        sys.exit(3)


class Uses(Step[Folder]):
    """Depends on any step."""

    parent: Step[Folder]

    def run(self, ctx: Context) -> Folder:
        return Folder.write(ctx.output)


class Waits(Step[Folder]):
    """Ends once a file called `gate` appears, or dies once if told so."""

    folder: Placement[str]
    dies: Placement[int] = 0
    """The signal that kills it."""
    label: str = ""

    def run(self, ctx: Context) -> Folder:
        count(self.folder, "waits")
        if self.dies and first(self.folder, "died"):
            os.kill(os.getpid(), self.dies)
        wait_for(Path(self.folder, "gate"))
        ctx.output.write("done.txt", b"done")
        return Folder.write(ctx.output)


class Naps(Step[Value[int]]):
    """Takes a while of every CPU that it is given."""

    number: int

    def run(self, ctx: Context) -> Value[int]:
        time.sleep(0.3)
        return Value.write(ctx.output, self.number)


class Gang(Step[Value[list[int]]]):
    """Each rank returns its rank; one of them dies in generation 1 if told so."""

    folder: Placement[str]
    victim: Placement[int] = -1
    raises: Placement[int] = -1

    def run(self, ctx: Context) -> Value[list[int]]:
        results = ctx.gang(member, rendezvous=Meeting, folder=self.folder, victim=self.victim, raises=self.raises)
        return Value.write(ctx.output, results)


class Orphans(Step[Value[list[int]]]):
    """A gang of which one rank kills the step's own process, once."""

    folder: Placement[str]

    def run(self, ctx: Context) -> Value[list[int]]:
        Path(self.folder, "attempt").write_text(str(os.getpid()))
        return Value.write(ctx.output, ctx.gang(orphaned, rendezvous=Meeting, folder=self.folder))


def orphaned(member: Member, *, folder: str) -> int:
    if member.rank == 0 and first(folder, "orphaned"):
        os.kill(int(Path(folder, "attempt").read_text()), signal.SIGKILL)
    if member.rank == 0 and counted(folder, "rank") == 0:
        count(folder, "rank")
        wait_for(Path(folder, "never"))
    return member.rank


class Meeting:
    """A rendezvous without torch."""

    address = "127.0.0.1:1"


def member(member: Member, *, folder: str, victim: int, raises: int) -> list[object]:
    member.beat("start", 0)
    count(folder, f"generation-{member.generation}-rank-{member.rank}")
    if member.rank == raises:
        raise ValueError(f"rank {member.rank} does not like this")
    if member.generation == 1 and member.rank == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    if member.generation == 1 and victim >= 0:
        wait_for(Path(folder, "never"))
    member.metric(step=1, loss=0.5)
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS")
    return [member.rank, member.may_commit(), {name: os.environ.get(name) for name in names}]


def square(shard: Shard, output: Output, *, folder: str, trouble: str) -> int:
    number = int(shard.name)
    kind, _, victim = trouble.partition(":")
    count(folder, shard.name)
    if kind and number == int(victim):
        if kind == "die-once" and first(folder, "died"):
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == "interrupt":
            raise KeyboardInterrupt
        if kind == "exit":
            sys.exit(3)
        if kind == "raise":
            raise ValueError(f"{number} is unlucky")
        if kind == "gate":
            wait_for(Path(folder, "gate"))
    output.write("square.txt", str(number**2).encode())
    return number**2


def deep(text: str) -> Folder:
    raise RuntimeError(text)


def count(folder: str, name: str) -> None:
    """Leave one file for each call."""
    Path(folder, f"{name}.{uuid.uuid4().hex}").touch()


def counted(folder: str | Path, name: str) -> int:
    return len(list(Path(folder).glob(f"{name}.*")))


def first(folder: str, name: str) -> bool:
    try:
        Path(folder, name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(0.02)
