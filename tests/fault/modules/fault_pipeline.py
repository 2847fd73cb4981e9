"""A tiny pipeline of one's own: a map over shards and two further steps; each execution leaves a line in a side file.

The side file is `$FAULT_SIDE`, outside the store and outside the recipe.
"""

import os
import sys

from marin import Context, Folder, Output, Shard, Step, Value
from marin.graph.artifact import Sharded

SHARDS = 6


class Squares(Step[Sharded]):
    """The squares of 0 to 5, one a shard."""

    def run(self, ctx: Context) -> Sharded:
        executed("squares")
        shards = [Shard(f"{number:04d}", digest=f"number {number}") for number in range(SHARDS)]
        mapped = ctx.map(square, shards)
        return Sharded.write(ctx.output, shards=mapped.shards, meta={"n": len(mapped)})


class Total(Step[Value[int]]):
    """The sum of the squares."""

    squares: Step[Sharded]

    def run(self, ctx: Context) -> Value[int]:
        executed("total")
        shards = ctx.load(self.squares).shards
        files = [shard.file("square.txt") for shard in shards]
        return Value.write(ctx.output, sum(int(ctx.load(self.squares).contents.reader.read(file)) for file in files))


class Letter(Step[Folder]):
    """Two files about the total, the first written in two halves."""

    total: Step[Value[int]]

    def run(self, ctx: Context) -> Folder:
        executed("letter")
        with ctx.output.open("first.txt") as file:
            file.write(b"the sum of the squares ")
            file.flush()
            sys.audit("fault.half-written")
            file.write(f"is {ctx.load(self.total).value}".encode())
        ctx.output.write("second.txt", b"that is all")
        return Folder.write(ctx.output)


def square(shard: Shard, output: Output) -> int:
    executed(shard.name)
    output.write("square.txt", str(int(shard.name) ** 2).encode())
    return int(shard.name) ** 2


def executed(name: str) -> None:
    """Leave a line that survives the process."""
    descriptor = os.open(os.environ["FAULT_SIDE"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(descriptor, f"{name}\n".encode())
    os.close(descriptor)


def letter() -> Letter:
    """Return the last of the three steps."""
    return Letter(total=Total(squares=Squares()))
