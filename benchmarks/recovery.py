"""How long after a kill the work goes on, beside a bare Ray actor that is replaced by a new one.

    python benchmarks/recovery.py                        # 10 kills of each kind; needs root, for the hosts
    python benchmarks/recovery.py --kills 3 --only rank driver --json
    python benchmarks/recovery.py --only train           # needs no hosts and no root

A cluster of hosts in namespaces of this machine (tests/cluster/hosts.py): a head without work and three workers. Each
row counts from the SIGKILL to the first work done after it. *bare*: an actor's process is killed, its death is seen, a
new actor is started, and its first method returns; every other row is given as a multiple of that. *rank*: one of two
ranks is killed, and all walk again. *worker*: the worker of a map is killed, and the shard that it had in hand runs
again. *node*: a host with a rank is lost without a last word, and all ranks walk again; most of that is the time until
Ray gives the host up, 5 failed questions here, a second apart (`--health`). *driver*: `marin run` is killed, and the
same command computes again; that is counted from the command. *train*: one of the two ranks of a small training
(gloo, embedded Ray on this machine) is killed; from the kill until that is seen, until both ranks are formed again,
and until they have done their first step, by the times that stand in the run's events.
"""

import argparse
import json
import os
import secrets
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import ray

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "cluster"))

import hosts  # noqa: E402  what tests of the cluster stand on as well

from marin.store import EventReader  # noqa: E402

MARIN = str(Path(sys.executable).with_name("marin"))
STEPS = f"{ROOT}/tests/cluster/modules/host_steps.py"
TRAINING = f"{ROOT}/tests/cluster/modules/gang_steps.py:training"
KINDS = ("train", "bare", "rank", "worker", "node", "driver")
PHASES = ("kill to seen", "seen to formed", "formed to step", "kill to step")
WORKERS = {"one": 2, "two": 2, "three": 2}


class Drive:
    """`marin run` of one pipeline on the head, and the notes of its work."""

    def __init__(self, cluster: hosts.Cluster, pipeline: str, folder: Path, **options: object) -> None:
        self._cluster = cluster
        self._folder = folder
        folder.mkdir(exist_ok=True)
        given = [f"--{name}={value}" for name, value in options.items()]
        own = ["--address", cluster.address, "--store", f"{folder}-store", "--folder", str(folder)]
        self._command = [MARIN, "run", f"{STEPS}:{pipeline}", *own, *given]
        self._process = self.start()

    def start(self) -> "subprocess.Popen[bytes]":
        """Give the command, for the first time or again."""
        self._process = self._cluster.head.start(self._command, self._folder.with_suffix(".log"))
        return self._process

    def notes(self, what: str) -> set[str]:
        """Return what was noted, each as `WHAT.HOST.PID.ID`."""
        return {path.name for path in self._folder.glob(f"{what}*")}

    def next(self, what: str, known: set[str] = frozenset()) -> str:  # type: ignore[assignment]
        """Wait for a note that is not known yet, and return it."""
        while not (new := self.notes(what) - known):
            if self._process.poll() is not None:
                raise SystemExit(f"the run has ended:\n{self._folder.with_suffix('.log').read_text()}")
            time.sleep(0.01)
        return min(new)

    def kill(self, note: str) -> None:
        """Kill the process that left a note."""
        _, host, pid, _ = note.split(".")
        self._cluster.hosts[host].kill(int(pid))

    def kill_driver(self) -> None:
        """Kill the driver itself, not what holds it in its namespace."""
        for driver in self._cluster.head.processes(MARIN):
            driver.send_signal(signal.SIGKILL)
        self._process.wait()

    def end(self) -> None:
        """End the run."""
        for driver in self._cluster.head.processes(MARIN):
            driver.send_signal(signal.SIGINT)
        self._process.wait()


def kill_ranks(cluster: hosts.Cluster, folder: Path) -> Iterator[float]:
    """Yield, for each kill of rank 0 or 1, the seconds until both walk in the next generation."""
    drive = Drive(cluster, "walking", folder, steps=100_000, pace=0.02)
    for generation in range(1, 1000):
        walked = drive.notes(f"step-*-g{generation}.")
        _five_steps(drive, generation, walked)
        ranks = sorted(drive.notes(f"generation-{generation}."))
        began = time.perf_counter()
        drive.kill(ranks[generation % 2])
        drive.next(f"step-*-g{generation + 1}.")
        yield time.perf_counter() - began


def _five_steps(drive: Drive, generation: int, walked: set[str]) -> None:
    """Let a generation keep a state, which renews the budget for losses."""
    for _ in range(12):
        walked = walked | {drive.next(f"step-*-g{generation}.", walked)}


def kill_workers(cluster: hosts.Cluster, folder: Path) -> Iterator[float]:
    """Yield, for each kill of a map's worker, the seconds until its shard runs again."""
    drive = Drive(cluster, "squares", folder, n=3, hold=0)
    for number in range(9):
        name = f"shard-{number % 3:04d}"  # one a host; each may be lost three times
        running = drive.notes(name)
        newest = max(running, key=lambda note: (folder / note).stat().st_mtime) if running else drive.next(name)
        began = time.perf_counter()
        drive.kill(newest)
        drive.next(name, running | {newest})
        yield time.perf_counter() - began


def kill_nodes(cluster: hosts.Cluster, folder: Path) -> Iterator[float]:
    """Yield, for each loss of the host of a rank, the seconds until all ranks walk again."""
    drive = Drive(cluster, "walking", folder, steps=100_000, pace=0.02)
    generation = 1
    while True:
        _five_steps(drive, generation, set())
        lost = min(drive.notes(f"generation-{generation}.")).split(".")[1]
        began = time.perf_counter()
        cluster.hosts[lost].die()
        drive.next(f"step-*-g{generation + 1}.")
        yield time.perf_counter() - began
        generation += 1
        cluster.start()


def kill_drivers(cluster: hosts.Cluster, folder: Path) -> Iterator[float]:
    """Yield, for each kill of the driver, the seconds from the same command to a shard that it has had computed."""
    drive = Drive(cluster, "squares", folder, n=100_000, seconds=0.1)
    while True:
        drive.next("shard", drive.notes("shard"))
        drive.kill_driver()
        hosts.until(lambda: not cluster_works(cluster), seconds=60)
        known = drive.notes("shard")
        began = time.perf_counter()
        drive.start()
        drive.next("shard", known)
        yield time.perf_counter() - began


def cluster_works(cluster: hosts.Cluster) -> bool:
    """Whether a worker of a run still lives somewhere."""
    titles = [hosts.title_of(process) for host in cluster.workers for process in host.processes("ray::")]
    return any("Agent" not in title and "IDLE" not in title for title in titles)


def replace_actors(cluster: hosts.Cluster, folder: Path, kills: int) -> list[float]:
    """Return, for each kill of a bare actor, the seconds until the first method of the next one has returned."""
    report = folder / "bare.json"  # Ray writes of deaths on standard output
    own = ["--child", cluster.address, str(report), "--kills", str(kills)]
    cluster.head.call(sys.executable, __file__, *own, timeout=60 * kills)
    return [float(seconds) for seconds in json.loads(report.read_text())]


class Bare:
    """An actor of which nothing is asked."""

    def pid(self) -> int:
        """Return its process."""
        return os.getpid()

    def fall(self) -> None:
        """Be killed."""
        os.kill(os.getpid(), signal.SIGKILL)


def bare(address: str, kills: int) -> list[float]:
    """Body of the child on the head."""
    ray.init(address, log_to_driver=False, logging_level="ERROR")
    kind = ray.remote(num_cpus=1, max_restarts=0)(Bare)
    actor, took = kind.remote(), []
    ray.get(actor.pid.remote())
    for _ in range(kills):
        began = time.perf_counter()
        falling = actor.fall.remote()
        try:
            ray.get(falling)
        except ray.exceptions.RayActorError:
            actor = kind.remote()
            ray.get(actor.pid.remote())
        took.append(time.perf_counter() - began)
    return took


class Training:
    """`marin run` of a training on this machine, and the events of its gang."""

    def __init__(self, folder: Path) -> None:
        self._store = str(folder / "store")
        self._log = folder / "train.log"
        command = [MARIN, "run", TRAINING, "--store", self._store]
        with self._log.open("w") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        self._events: list[dict[str, Any]] = []
        self._reader: EventReader | None = None

    def ranks(self, generation: int) -> dict[int, dict[str, Any]]:
        """Return the placement of each rank of a generation."""
        placed = [event for event in self._events if event.get("generation") == generation and "rank" in event]
        return {event["rank"]: event for event in placed}

    def steps(self, generation: int) -> list[float]:
        """Return when each step of a generation was done."""
        if len(ranks := self.ranks(generation)) < 2:
            return []
        since = max(_seconds(event) for event in ranks.values())
        times = [_seconds(event) for event in self._events if event["kind"] == "metric" and event.get("rank") == 0]
        return [time for time in times if time > since]

    def seen(self, generation: int) -> float:
        """Return when the end of a generation was seen."""
        (event,) = (e for e in self._events if e["kind"] == "exit" and e.get("generation") == generation)
        return _seconds(event)

    def until(self, happened: Callable[[], object]) -> None:
        """Wait until the events say so."""
        while not happened():
            if self._process.poll() is not None:
                raise SystemExit(f"the run has ended:\n{self._log.read_text()}")
            time.sleep(0.2)
            runs = list(Path(self._store, "runs").glob("*"))
            if runs and self._reader is None:
                self._reader = EventReader(self._store, runs[0].name)
            if self._reader is not None:
                self._events += self._reader.poll()

    def end(self) -> None:
        """Stop the run as Ctrl-C does, with all that it has started."""
        self._process.send_signal(signal.SIGINT)
        self._process.wait()


def _seconds(event: dict[str, Any]) -> float:
    return datetime.fromisoformat(event["time"]).timestamp()


def kill_training_ranks(folder: Path, kills: int) -> list[tuple[float, ...]]:
    """Return, for each kill of a rank, the seconds of each of PHASES."""
    training, took = Training(folder), []
    try:
        for generation in range(1, kills + 1):
            training.until(lambda g=generation: training.steps(g))
            began = time.time()
            # Two checkpoints at least, which renew the budget; then at another moment of the second each time.
            training.until(lambda since=began + 2.5 + 0.1 * generation: time.time() > since)
            victim = training.ranks(generation)[generation % 2]
            killed = time.time()
            os.kill(victim["pid"], signal.SIGKILL)
            training.until(lambda g=generation: training.steps(g + 1))
            formed = max(_seconds(event) for event in training.ranks(generation + 1).values())
            seen, stepped = training.seen(generation), training.steps(generation + 1)[0]
            took.append((seen - killed, formed - seen, stepped - formed, stepped - killed))
    finally:
        training.end()
    return took


KILLERS: dict[str, Callable[[hosts.Cluster, Path], Iterator[float]]] = {
    "rank": kill_ranks,
    "worker": kill_workers,
    "node": kill_nodes,
    "driver": kill_drivers,
}


def measure(kind: str, cluster: hosts.Cluster, folder: Path, kills: int) -> list[float]:
    """Return the seconds of each kill; the run is ended afterwards."""
    if kind == "bare":
        return replace_actors(cluster, folder, kills)
    killer = KILLERS[kind](cluster, folder / kind)
    took = [next(killer) for _ in range(min(kills, 9) if kind == "worker" else kills)]
    for driver in cluster.head.processes(MARIN):
        driver.send_signal(signal.SIGKILL)
    hosts.until(lambda: not cluster_works(cluster), seconds=60)
    return took


def row_of(kind: str, took: list[float], base: float | None) -> dict[str, Any]:
    """Return the distribution of one kind of kill."""
    ordered = sorted(took)
    median = statistics.median(ordered)
    return {
        "kind": kind,
        "kills": len(took),
        "median_s": round(median, 2),
        "p90_s": round(ordered[min(len(ordered) - 1, int(0.9 * len(ordered)))], 2),
        "max_s": round(ordered[-1], 2),
        "ratio": round(median / base, 1) if base else None,
        "seconds": [round(seconds, 3) for seconds in took],
    }


def show_row(row: dict[str, Any]) -> None:
    """Print one kind of kill."""
    figures = "".join(f"  {name} {row[f'{name}_s']:>6} s" for name in ("median", "p90", "max"))
    ratio = f"  {row['ratio']} of bare" if row["ratio"] else ""
    print(f"{row['kind']:>14}  {row['kills']:>2} kills{figures}{ratio}", flush=True)


def _nothing(row: dict[str, Any]) -> None:
    """The figures are printed at the end."""


def main() -> None:
    """Start the cluster, kill, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--only", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--health", type=int, default=5, help="failed questions after which Ray gives a host up")
    parser.add_argument("--json", action="store_true", help="print one object with every figure")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        Path(given.child[1]).write_text(json.dumps(bare(given.child[0], given.kills)))
        return
    if set(given.only) != {"train"} and (why := hosts.why_no_hosts()):
        raise SystemExit(why)
    os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32), NO_COLOR="1", OMP_NUM_THREADS="1")
    folder = Path(tempfile.mkdtemp(prefix="mr-"))
    health = {"period_ms": 1000, "timeout_ms": 1000, "initial_delay_ms": 1000, "failure_threshold": given.health}
    environment = {f"RAY_health_check_{name}": str(value) for name, value in health.items()}
    show = _nothing if given.json else show_row
    rows: list[dict[str, Any]] = []
    try:
        if "train" in given.only:
            took = kill_training_ranks(folder, given.kills)
            for phase, seconds in zip(PHASES, zip(*took, strict=True), strict=True):
                rows.append(row_of(phase, list(seconds), None))
                show(rows[-1])
        if kinds := [kind for kind in given.only if kind != "train"]:
            with hosts.cluster_of_hosts(folder, workers=WORKERS, environment=environment) as cluster:
                base = None
                for kind in kinds:
                    rows.append(row := row_of(kind, measure(kind, cluster, folder, given.kills), base))
                    base = row["median_s"] if kind == "bare" else base
                    show(row)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if given.json:
        print(json.dumps({"health": health, "rows": rows}))


if __name__ == "__main__":
    main()
