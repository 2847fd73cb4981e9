"""What marin costs for each of many small steps, beside bare Ray tasks and another orchestrator.

    python benchmarks/steps.py                    # 1,000 steps, side by side and in chains of ten
    python benchmarks/steps.py --steps 200 --only inline ray
    python benchmarks/steps.py --steps 200 --only ray --latency 30

Each step writes one small number to a file. *ray* is marin through an embedded cluster, *inline* marin in one process,
*bare* a Ray task for each step that writes and flushes the same file. *peer* is redun, in a virtual environment that
holds it (`--peer PYTHON`, or where `python -m venv FOLDER && FOLDER/bin/pip install redun` has put it); without one it
is left out, with a word. Clusters are warm: one step runs before the clock starts. *driver* is the processor time that
the driver's process itself spent, all its threads, *workers* that of all its workers; `--calls` counts what one step
asks of an object store, and `--latency` makes marin's store a simulated one whose calls take so many milliseconds.
"""

import argparse
import importlib
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
import ray

from marin import Context, Step, Value, plan
from marin.run.api import open_backend, run_plan
from marin.run.backends.inline import InlineBackend
from marin.testing import FaultyStorage, Rule

CHAIN = 10
WAYS = ("inline", "ray", "bare", "peer")
PEER = """
import sys, time
from redun import Scheduler, task
from redun.config import Config
redun_namespace = "steps"

@task()
def source(folder, number):
    with open(f"{folder}/{number}.json", "w") as file:
        file.write(str(number))
    return number

@task()
def link(folder, number, above):
    with open(f"{folder}/{number}.json", "w") as file:
        file.write(str(above + 1))
    return above + 1

@task()
def pipeline(folder, num_steps, depth):
    last = []
    for first in range(0, num_steps, depth):
        value = source(folder, first)
        for number in range(first + 1, first + depth):
            value = link(folder, number, value)
        last.append(value)
    return last

folder, num_steps, depth = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
scheduler = Scheduler(config=Config({"backend": {"db_uri": f"sqlite:///{folder}/redun.db"}}))
scheduler.load()
scheduler.run(source(folder, -1))
wall, busy = time.perf_counter(), time.process_time()
assert len(scheduler.run(pipeline(folder, num_steps, depth))) == num_steps // depth
print(time.perf_counter() - wall, time.process_time() - busy)
"""


class Source(Step[Value[int]]):
    """The first of a chain."""

    number: int

    def run(self, ctx: Context) -> Value[int]:
        """Write the number."""
        return Value.write(ctx.output, self.number)


class Link(Step[Value[int]]):
    """One of the others."""

    above: Step[Value[int]]

    def run(self, ctx: Context) -> Value[int]:
        """Write one more than what is above."""
        return Value.write(ctx.output, ctx.load(self.above).value + 1)


def pipeline(num_steps: int, depth: int, first: int = 0) -> list[Step[Any]]:
    """Return the last step of each chain."""
    last: list[Step[Any]] = []
    for chain in range(num_steps // depth):
        step: Step[Any] = Source(number=first + chain * depth)
        for _ in range(depth - 1):
            step = Link(above=step)
        last.append(step)
    return last


def write_number(path: str, above: Sequence[Any]) -> int:
    """Body of the bare task: what a step does, and no more."""
    number = above[0] + 1 if above else 1
    with open(path, "w") as file:
        file.write(str(number))
        file.flush()
        os.fsync(file.fileno())
    return number


def measure(way: str, num_steps: int, depth: int, folder: str, peer: str, latency: float) -> dict[str, float]:
    """Run the steps in this process; return wall, driver and worker seconds of each."""
    if way == "peer":
        script = Path(folder, "pipeline.py")  # redun reads the source of its tasks
        script.write_text(PEER)
        command = [peer, str(script), folder, str(num_steps), str(depth)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        wall, busy = map(float, done.stdout.split()[-2:])
        return {"wall": wall, "driver": busy, "workers": 0.0}
    place = folder
    if latency and way in ("inline", "ray"):
        storage = FaultyStorage.folder(Path(folder), [Rule("slow", seconds=latency / 1000)])
        place = storage.url("store")
    start, go = {"inline": _inline, "ray": _marin, "bare": _bare}[way](num_steps, depth, place)
    start()
    began, busy, workers = time.perf_counter(), _busy(), _workers_busy()
    go()
    return {
        "wall": time.perf_counter() - began,
        "driver": _busy() - busy,
        "workers": _workers_busy() - workers,
    }


def _inline(num_steps: int, depth: int, folder: str) -> tuple[Callable[[], None], Callable[[], None]]:
    return _through(InlineBackend(), num_steps, depth, folder)


def _marin(num_steps: int, depth: int, folder: str) -> tuple[Callable[[], None], Callable[[], None]]:
    return _through(open_backend("ray", None), num_steps, depth, folder)


def _through(backend: Any, num_steps: int, depth: int, folder: str) -> tuple[Callable[[], None], Callable[[], None]]:
    def run(steps: list[Step[Any]]) -> None:
        planned = plan(steps, store=folder)
        result = run_plan(planned, store=folder, backend=backend)
        assert {step.state for step in result.steps} == {"done"}, [step.error for step in result.steps][:3]

    return lambda: run(pipeline(8, 2, first=10**6)), lambda: run(pipeline(num_steps, depth))


def _bare(num_steps: int, depth: int, folder: str) -> tuple[Callable[[], None], Callable[[], None]]:
    task = ray.remote(write_number)

    def run(count: int, depth: int) -> None:  # all chains go on together, a link with what is above it in hand
        above: list[list[Any]] = [[] for _ in range(count // depth)]
        for number in range(depth):
            tasks = [task.remote(f"{folder}/{chain}-{number}", each) for chain, each in enumerate(above)]
            above = [[each] for each in ray.get(tasks)]

    def start() -> None:
        ray.init(
            address="local",
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
            object_store_memory=200 * 2**20,
            runtime_env={"env_vars": {"PYTHONPATH": os.path.dirname(__file__)}},
        )
        run(8, 2)

    return start, lambda: run(num_steps, depth)


def _busy() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _workers_busy() -> float:
    """Return the processor time of Ray's worker processes below this one."""
    total = 0.0
    for child in psutil.Process().children(recursive=True):
        try:
            if child.name().startswith("ray::"):
                times = child.cpu_times()
                total += times.user + times.system
        except psutil.Error:
            continue
    return total


def calls_of_a_step(num_steps: int) -> dict[str, float]:
    """Return how often one step asks an object store, by operation, and in all."""
    storage = FaultyStorage.memory("steps")
    root = storage.url("store")
    backend = InlineBackend()
    planned = plan(pipeline(num_steps, 2), store=root)
    before = dict(storage.calls)
    run_plan(planned, store=root, backend=backend)
    counts = {name: (count - before.get(name, 0)) / num_steps for name, count in storage.calls.items()}
    return {**{name: round(count, 2) for name, count in sorted(counts.items())}, "all": round(sum(counts.values()), 1)}


def _peer(given: str) -> str:
    """Return a Python that has redun, or nothing with a word about it."""
    python = given or shutil.which("redun") or ""
    if python.endswith("redun"):
        python = str(Path(python).parent / "python")
    if not python or subprocess.run([python, "-c", "import redun"], capture_output=True, check=False).returncode:
        print("peer: no Python with redun; `--peer FOLDER/bin/python` names one. It is left out.")
        return ""
    return python


def main() -> None:
    """Measure each way in a process of its own, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--depth", type=int, nargs="+", default=[1, CHAIN], help="steps in a chain")
    parser.add_argument("--only", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--peer", default="", help="a Python that can import redun")
    parser.add_argument("--calls", action="store_true", help="count what a step asks of an object store")
    parser.add_argument("--latency", type=float, default=0.0, help="milliseconds that a call to marin's store takes")
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        way, depth, folder, peer = given.child
        print(json.dumps(measure(way, given.steps, int(depth), folder, peer, given.latency)))
        return
    if given.calls:
        print(
            "calls of a step:", ", ".join(f"{name} {count:g}" for name, count in calls_of_a_step(given.steps).items())
        )
        return
    peer = _peer(given.peer) if "peer" in given.only else ""
    print(f"{given.steps} steps, milliseconds a step")
    print(f"{'way':>7} {'chains of':>9} {'wall':>7} {'driver':>7} {'workers':>8}")
    for way in given.only:
        if way == "peer" and not peer:
            continue
        for depth in given.depth:
            folder = tempfile.mkdtemp(prefix="steps-")
            try:
                command = [
                    sys.executable,
                    __file__,
                    "--steps",
                    str(given.steps),
                    "--latency",
                    str(given.latency),
                    "--child",
                    way,
                    str(depth),
                    folder,
                    peer,
                ]
                done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
                row = {name: 1000 * value / given.steps for name, value in json.loads(done.stdout).items()}
                print(
                    f"{way:>7} {depth:>9} {row['wall']:>7.2f} {row['driver']:>7.2f} {row['workers']:>8.2f}", flush=True
                )
            finally:
                shutil.rmtree(folder)


if __name__ == "__main__":
    # Workers import this file by name: were its steps those of `__main__`, they could not.
    importlib.import_module(Path(__file__).stem).main()
