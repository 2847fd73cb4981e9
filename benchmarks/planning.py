"""How long planning and an unchanged rerun take, and how often they ask the store.

    python benchmarks/planning.py                        # 1,000 and 10,000 steps
    python benchmarks/planning.py --steps 100000 --latency 0 30

A store is filled with the results of a pipeline of groups of four steps in a chain, as a run would have left them; then
a fresh process plans the same pipeline, and runs it again. Local stores are compared with a bare loop that reads the
same manifests and parses them; stores that answer 30 ms late with the least time that the same number of calls takes
over the client's connections. Nothing is computed, so that what is left is marin.
"""

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from marin import Config, Context, Step, Value, plan
from marin.fs.location import REMOTE_CONNECTIONS
from marin.graph.files import Contents, FileRef
from marin.graph.plan import resolve
from marin.graph.recipe import source_of
from marin.graph.topology import order
from marin.run.api import run_plan
from marin.store import Manifest, ParentRef, Producer, layout, output_digest, records
from marin.testing import FaultyStorage, Rule

RUN = "20260101-000000-000000"
DEPTH = 4


class Optimizer(Config):
    """Some nested configuration."""

    lr: float
    weight_decay: float = 0.1


class Source(Step[Value[int]]):
    """The first of a chain."""

    version = 1
    number: int

    def run(self, ctx: Context) -> Value[int]:
        """Never runs here."""
        return Value.write(ctx.output, self.number)


class Link(Step[Value[int]]):
    """One of the others."""

    version = 1
    above: Step[Value[int]]
    optimizer: Optimizer
    layers: int = 4

    def run(self, ctx: Context) -> Value[int]:
        """Never runs here."""
        return Value.write(ctx.output, ctx.load(self.above).value)


def pipeline(num_steps: int) -> list[Step[Any]]:
    """Return the last step of each chain."""
    last: list[Step[Any]] = []
    for chain in range(num_steps // DEPTH):
        step: Step[Any] = Source(number=chain)
        for depth in range(1, DEPTH):
            step = Link(above=step, optimizer=Optimizer(lr=depth / 1000))
        last.append(step)
    return last


def fill(steps: Sequence[Step[Any]], root: str, put: Any) -> None:
    """Write what a run of `steps` would have left; `put(path, data)` stores one object."""
    put("store.json", records.encode("store", {"format": layout.FORMAT}))
    made: dict[str, Manifest] = {}
    for named in order(steps, lambda patterns: ()):
        parents = [made[name] for name in named.parents]
        recipe = resolve(named.step, [parent.digest for parent in parents], (), {})
        step, fingerprint = named.step.step_name(), recipe.fingerprint
        folder = f"artifacts/{step}/{fingerprint[:16]}"
        source = source_of(named.step)
        assert source is not None
        file = FileRef("value.json", f"{folder}/attempts/1/output/value.json", 2, fingerprint)
        digest = output_digest("Value", 1, Contents(None, (file,)))  # type: ignore[arg-type]
        made[named.name] = Manifest(
            fingerprint=fingerprint, step=step, artifact="Value", artifact_schema=1, files=(file,), shards=(),
            meta=None, digest=digest, attempt="1", epoch=1, run=RUN, producer=Producer(),
            started="2026-01-01T00:00:00+00:00",
            finished="2026-01-01T00:00:01+00:00", seconds=1.0, resources={}, metrics={}, recipe=named.recipe,
            parents=tuple(ParentRef("above", each.step, each.fingerprint, each.digest) for each in parents),
            name=named.name, source=source.digest,
        )  # fmt: skip
        put(file.url, b"1\n")
        put(f"{folder}/recipe.json", records.encode("recipe", {"fingerprint": fingerprint, "recipe": recipe.record}))
        put(f"{folder}/manifest.json", made[named.name].encode())
    rows = [
        {"name": name, "step": each.step, "fingerprint": each.fingerprint, "digest": each.digest, "state": "done"}
        for name, each in made.items()
    ]
    put(f"runs/{RUN}/run.json", records.encode("run", {"run": RUN, "state": "done", "steps": rows}))


def measure(num_steps: int, latency_ms: int, root: str) -> dict[str, Any]:
    """Plan and rerun in this process; the store is at `root` unless it is to answer late."""
    steps = pipeline(num_steps)
    storage = None
    if latency_ms:
        storage = FaultyStorage.memory("planning")
        root = storage.url("store")
        fill(steps, root, lambda path, data: storage.objects.put(f"store/{path}", data))
        storage.rules = [Rule("slow", seconds=latency_ms / 1000)]
        steps = pipeline(num_steps)
    began = time.perf_counter()
    planned = plan(steps, store=root)
    seconds = time.perf_counter() - began
    assert {step.state for step in planned.steps} == {"cached"}, planned.steps[0].cause
    calls = sum(storage.calls.values()) if storage else 0
    plan_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    del planned, steps
    began = time.perf_counter()
    result = run_plan(plan(pipeline(num_steps), store=root), store=root)
    rerun = time.perf_counter() - began
    assert result.state == "done"
    bare = calls * latency_ms / 1000 / REMOTE_CONNECTIONS if storage else _bare_loop(Path(root))
    return {
        "steps": num_steps,
        "latency_ms": latency_ms,
        "plan_s": round(seconds, 2),
        "rerun_s": round(rerun, 2),
        "bare_s": round(bare, 2),
        "calls": calls,
        "plan_mb": plan_mb,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


def _bare_loop(root: Path) -> float:
    began = time.perf_counter()
    for file in root.glob("artifacts/*/*/manifest.json"):
        json.loads(file.read_bytes())
    return time.perf_counter() - began


def main() -> None:
    """Measure each combination in a process of its own, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, nargs="+", default=[1000, 10_000])
    parser.add_argument("--latency", type=int, nargs="+", default=[0, 30], help="milliseconds a call")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        print(json.dumps(measure(int(given.child[0]), int(given.child[1]), given.child[2])))
        return
    headings = ("latency", "plan", "rerun", "bare")
    print(f"{'steps':>7} " + " ".join(f"{name:>8}" for name in headings) + "  ratio    calls   memory of rerun")
    for num_steps in given.steps:
        folder = Path(tempfile.mkdtemp(prefix="planning-"))
        try:
            if 0 in given.latency:
                fill(pipeline(num_steps), str(folder), lambda path, data: _put(folder / path, data))  # noqa: B023
            for latency in given.latency:
                command = [sys.executable, __file__, "--child", str(num_steps), str(latency), str(folder)]
                row = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
                ratio = row["plan_s"] / row["bare_s"] if row["bare_s"] else 0
                print(
                    f"{num_steps:>7} {latency:>5} ms {row['plan_s']:>6} s {row['rerun_s']:>6} s {row['bare_s']:>6} s"
                    f" {ratio:>6.1f} {row['calls'] or '':>8} {row['plan_mb']:>5} MB {row['peak_mb']:>5} MB"
                )
        finally:
            shutil.rmtree(folder)


def _put(file: Path, data: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)


if __name__ == "__main__":
    main()
