"""What a map over very many small shards takes: time, memory of the process that maps, and storage calls a shard.

    python benchmarks/maps.py                            # 100,000 shards, in one process and through embedded Ray
    python benchmarks/maps.py --shards 20000 --only ray --workers 4

Each shard's function returns a number and writes nothing, so that what is left is marin. *again* is the same map of
another attempt, which finds every shard in the store. *memory* is the peak of the process that maps, less what it had
before; *results* is what the shards themselves take there, which the step holds anyway.
"""

import argparse
import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

from marin import Context, Step, Value, plan
from marin.base.config import Placement
from marin.graph.files import Shard
from marin.run.api import run_plan
from marin.run.backends.inline import InlineBackend
from marin.testing import FaultyStorage

WAYS = ("inline", "ray")


class Maps(Step[Value[int]]):
    """Maps over trivial shards, and says what that took."""

    shards: int
    report: Placement[str]
    label: str = ""

    def run(self, ctx: Context) -> Value[int]:
        """Square every number."""
        shards = [Shard(f"{number:06d}", digest=f"number {number}") for number in range(self.shards)]
        before, began = _peak(), time.perf_counter()
        total = sum(ctx.map(square, shards))
        row = {"seconds": time.perf_counter() - began, "memory_mb": (_peak() - before) / 1024}
        Path(self.report).write_text(json.dumps(row))
        return Value.write(ctx.output, total)


def square(shard: Shard) -> int:
    """Return the square of the shard's number."""
    return int(shard.name) ** 2


def _peak() -> float:
    """Return the most memory that this process has held, in kB; getrusage would count what its parent held too."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith("VmHWM")))


def results_mb(shards: int) -> float:
    """Return what input and result of each shard take in memory, in dictionaries by fingerprint."""
    tracemalloc.start()
    kept = {
        f"{i:064x}": (Shard(f"{i:06d}", f"number {i}"), Shard(f"{i:06d}", f"{i:064x}", (), i)) for i in range(shards)
    }
    size = tracemalloc.get_traced_memory()[0] / 2**20
    tracemalloc.stop()
    assert len(kept) == shards
    return size


def measure(way: str, shards: int, workers: int, folder: str) -> dict[str, float]:
    """Map in this process, or in a worker below it; return what it took, first and again."""
    backend = InlineBackend() if way == "inline" else _ray(workers)
    row: dict[str, float] = {}
    for label in ("", "again"):
        step = Maps(shards=shards, report=f"{folder}/report.json", label=label)
        result = run_plan(plan([step], store=f"{folder}/store"), store=f"{folder}/store", backend=backend)
        assert result.state == "done", result.steps[0].error
        report = json.loads(Path(folder, "report.json").read_text())
        row |= {f"{name}{'_' + label if label else ''}": value for name, value in report.items()}
    row["event_files"] = sum(len(list(run.glob("events/*"))) for run in Path(folder, "store", "runs").iterdir())
    return row


def _ray(workers: int) -> object:
    backends: Callable[..., object] = importlib.import_module("marin.run.backends.ray").RayBackend
    return backends(None, num_cpus=workers)


def calls_of_a_shard(shards: int) -> dict[str, float]:
    """Return how often one shard asks an object store, by operation, first and again."""
    storage = FaultyStorage.memory("maps")
    root, counts = storage.url("store"), {}
    with tempfile.TemporaryDirectory() as folder:
        for label in ("first", "again"):
            before = sum(storage.calls.values())
            step = Maps(shards=shards, report=f"{folder}/report.json", label=label)
            run_plan(plan([step], store=root), store=root, backend=InlineBackend())
            counts[label] = (sum(storage.calls.values()) - before) / shards
    return counts


def main() -> None:
    """Measure each way in a process of its own, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=int, default=100_000)
    parser.add_argument("--workers", type=int, default=3, help="CPUs of the embedded cluster")
    parser.add_argument("--only", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        print(json.dumps(measure(given.child[0], given.shards, given.workers, given.child[1])))
        return
    calls = calls_of_a_shard(1000)
    print(f"{given.shards} shards; storage calls of one: {calls['first']:.2f}, again {calls['again']:.2f};", end=" ")
    print(f"results take {results_mb(given.shards):.0f} MB")
    for way in given.only:
        folder = tempfile.mkdtemp(prefix="maps-")
        try:
            command = [sys.executable, __file__, "--shards", str(given.shards), "--workers", str(given.workers)]
            command += ["--child", way, folder]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=dict(os.environ))
            row = json.loads(done.stdout)
            each = 1000 * row["seconds"] / given.shards
            print(
                f"{way:>7}: {row['seconds']:.1f} s, {each:.2f} ms a shard, memory {row['memory_mb']:.0f} MB;"
                f" again {row['seconds_again']:.1f} s, {row['memory_mb_again']:.0f} MB;"
                f" {row['event_files']} objects of events",
                flush=True,
            )
        finally:
            shutil.rmtree(folder)


if __name__ == "__main__":
    # Workers import this file by name: were its steps those of `__main__`, they could not.
    importlib.import_module(Path(__file__).stem).main()
