"""Maps for the tests of a cluster: importable by workers, with trouble to order.

`folder` is a scratch folder outside the store: each call leaves a file there that says where and when it ran.
"""

import json
import os
import time
import uuid
from pathlib import Path

from marin.base.config import Placement
from marin.graph.artifact import Value
from marin.graph.context import Context
from marin.graph.files import Shard
from marin.graph.step import Step


class Squares(Step[Value[int]]):
    """The sum of the squares of 0 to n - 1, one a shard."""

    n: int
    folder: Placement[str]
    seconds: Placement[float] = 0.0
    unlucky: Placement[int] = -1

    def run(self, ctx: Context) -> Value[int]:
        shards = [Shard(f"{i:06d}", digest=f"number {i}") for i in range(self.n)]
        before = _peak()
        mapped = ctx.map(square, shards, folder=self.folder, seconds=self.seconds, unlucky=self.unlucky)
        Path(self.folder, "grown_kb").write_text(str(_peak() - before))
        return Value.write(ctx.output, sum(mapped))


class Counted(Squares):
    """The same, without a file for each call."""

    def run(self, ctx: Context) -> Value[int]:
        shards = [Shard(f"{i:06d}", digest=f"number {i}") for i in range(self.n)]
        before = _peak()
        total = sum(ctx.map(quick_square, shards))
        Path(self.folder, "grown_kb").write_text(str(_peak() - before))
        return Value.write(ctx.output, total)


def square(shard: Shard, *, folder: Placement[str], seconds: Placement[float], unlucky: Placement[int]) -> int:
    number, began = int(shard.name), time.time()
    time.sleep(seconds)
    call = {"pid": os.getpid(), "began": began, "ended": time.time()}
    Path(folder, f"{shard.name}.{uuid.uuid4().hex}").write_text(json.dumps(call))
    if number == unlucky and not Path(folder, "mended").exists():
        raise ValueError(f"{number} is unlucky")
    return number**2


def quick_square(shard: Shard) -> int:
    return int(shard.name) ** 2


def calls(folder: Path, name: str = "*") -> list[dict[str, float]]:
    """Return what each call left, of one shard or of all."""
    return [json.loads(path.read_text()) for path in folder.glob(f"{name}.*")]


def most_at_once(called: list[dict[str, float]]) -> int:
    """Return how many calls ran at the same moment, at most."""
    return max(sum(each["began"] <= call["began"] < each["ended"] for each in called) for call in called)


def _peak() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmHWM")))
