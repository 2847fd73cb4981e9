"""What the drivers of test_gc_while_runs run: importable, so that steps can be found by their module.

Usage: gc_driver.py STORE SECONDS SEED. Runs pipelines again and again and prints the digests that they came to.
"""

import json
import random
import sys
import time

from marin import Context, Folder, Shard, Step, Value
from marin.graph.artifact import Sharded
from marin.graph.files import Output
from marin.run import api


def part(shard: Shard, output: Output, *, scale: int) -> int:
    time.sleep(0.005)
    output.write("part.txt", str(shard.value * scale).encode() * 50)
    return int(shard.value) * scale


class Parts(Step[Sharded]):
    """Shards that several variants share."""

    count: int
    first: int

    def run(self, ctx: Context) -> Sharded:
        shards = [Shard(str(n), f"{n:064x}", (), n) for n in range(self.first, self.first + self.count)]
        ctx.map(part, shards, scale=3)  # results that no manifest names
        mapped = ctx.map(part, shards, scale=2)
        time.sleep(0.1)
        for shard in mapped.shards:
            assert ctx_read(shard) == str(shard.value).encode() * 50
        return Sharded.write(ctx.output, shards=mapped.shards, meta={"count": self.count})


def ctx_read(shard: Shard) -> bytes:
    with open(shard.file("part.txt").url, "rb") as file:
        return file.read()


class Joined(Step[Folder]):
    parts: Step[Sharded]

    def run(self, ctx: Context) -> Folder:
        loaded = ctx.load(self.parts)
        time.sleep(0.1)
        ctx.output.write("joined", b"".join(loaded.contents.reader.read(s.file("part.txt")) for s in loaded.shards))
        return Folder.write(ctx.output)


class Length(Step[Value[int]]):
    joined: Step[Folder]
    salt: int

    def run(self, ctx: Context) -> Value[int]:
        time.sleep(0.1)
        return Value.write(ctx.output, len(ctx.load(self.joined).read("joined")) + self.salt)


def main(store: str, seconds: float, seed: int) -> None:
    chance, end = random.Random(seed), time.monotonic() + seconds
    digests: dict[str, set[str]] = {}
    states: dict[str, int] = {}
    while time.monotonic() < end:
        first, salt = chance.randrange(5), chance.randrange(2)
        target = [Length(joined=Joined(parts=Parts(count=4, first=first)), salt=salt)]
        time.sleep(chance.random() * 0.2)
        result = api.run_plan(api.plan(target, store=store), store=store, backend="inline")
        for step in result.steps:
            states[step.state] = states.get(step.state, 0) + 1
            assert step.state in ("cached", "done"), step.error
            digests.setdefault(f"{step.step} {first} {salt}", set()).add(str(step.digest))
    sys.stdout.write(json.dumps({"digests": {key: sorted(each) for key, each in digests.items()}, "states": states}))


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]))
