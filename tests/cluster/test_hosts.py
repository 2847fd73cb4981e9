"""Hosts die and networks are cut under a map and a gang; the results are those of an undisturbed run.

Three working hosts, a head and a desk without work, each in namespaces of its own (tests/cluster/hosts.py). The store
is a folder that all of them see, also a host that is cut off: the hardest case for what keeps a lost rank from
committing.
"""

import importlib
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import hosts
import pytest

from marin.run import api
from marin.store import EventReader

pytestmark = [
    pytest.mark.slow,  # minutes of clusters over several hosts
    pytest.mark.skipif(hosts.why_no_hosts() is not None, reason=str(hosts.why_no_hosts())),
]

MODULES = str(Path(__file__).parent / "modules")
MOTO = str(Path(sys.executable).with_name("moto_server"))
MARIN = str(Path(sys.executable).with_name("marin"))
# A host is given up some 5 s after its last word; Ray's own choice takes a minute or more.
HEALTH = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "5",
    "RAY_raylet_start_wait_time_s": "120",
}
# The same for what a driver and its workers wait for; marin's own choice takes 40 s, Ray's 7 minutes.
WATCHFUL = {"RAY_grpc_client_keepalive_time_ms": "3000", "RAY_grpc_client_keepalive_timeout_ms": "3000"}
WORKERS = {"one": 3, "two": 3, "three": 3}
NUM_SHARDS, NUM_STEPS, KEEP_EVERY, HOLD = 40, 40, 5, 10


LEFT = """
import json, sys, ray
ray.init(sys.argv[1], log_to_driver=False, logging_level="ERROR")
groups = [each["name"] for each in ray.util.placement_group_table().values() if each["state"] != "REMOVED"]
actors = [actor["name"] for actor in ray._private.state.actors().values() if actor["State"] != "DEAD"]
print(json.dumps({"actors": actors, "groups": groups}))
"""


@pytest.fixture(scope="module")
def steps() -> ModuleType:
    return importlib.import_module("host_steps")


@pytest.fixture(scope="module")
def short() -> Iterator[Path]:
    """A folder whose name is short enough for Unix sockets."""
    folder = Path(tempfile.mkdtemp(prefix="mh-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


class Place(NamedTuple):
    """A cluster, and a host whose S3 server is a store that all others reach over the network."""

    cluster: Any
    bucket: Any
    aws: dict[str, str]


@pytest.fixture(scope="module")
def place(short: Path) -> Iterator[Place]:
    with hosts.Network() as network:
        bucket = network.host("bucket")
        bucket.start([MOTO, "-H", "0.0.0.0", "-p", "5000"], short / "bucket.log")
        aws = {
            "AWS_ENDPOINT_URL": f"http://{bucket.address}:5000",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "NO_PROXY": "*",
        }
        cluster = hosts.Cluster(network, short, workers=WORKERS, environment=HEALTH | aws)
        cluster.start()
        yield Place(cluster, bucket, aws)


@pytest.fixture
def cluster(place: Place) -> Any:
    """The cluster with all its hosts, whatever the test before did to them."""
    place.cluster.start()
    return place.cluster


@pytest.fixture(scope="module")
def undisturbed(steps: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The digest of each step's output where nothing goes wrong."""
    store = tmp_path_factory.mktemp("undisturbed")
    targets = [steps.Squares(n=NUM_SHARDS, folder="", seconds=0), steps.Walk(steps=NUM_STEPS, folder="", seconds=0)]
    result = api.run_plan(api.plan(targets, store=store), store=store, backend="inline")
    return {step.name: str(step.digest) for step in result.steps}


class Drive:
    """`marin run` of this module's pipeline on one host, and what can be seen of it in the store."""

    def __init__(
        self,
        cluster: Any,
        host: Any,
        store: str,
        scratch: Path,
        *,
        pipeline: str = "both",
        environment: Mapping[str, str] | None = None,
        **more: str,
    ):
        self.scratch, self.store, self.host = scratch, store, host
        scratch.mkdir(exist_ok=True)
        known = self.runs
        self.log = scratch.with_suffix(".log")
        options = [f"--{name}={value}" for name, value in more.items()]
        target = f"{MODULES}/host_steps.py:{pipeline}"
        command = [MARIN, "run", target, "--address", cluster.address, "--store", store, "--folder", str(scratch)]
        self._known = known
        self._command, self._environment = [*command, *options], {**WATCHFUL, **(environment or {})}
        self.process: subprocess.Popen[bytes] = host.start(self._command, self.log, self._environment)

    def again(self) -> None:
        """Give the same command once more."""
        self._known = self.runs
        self.process = self.host.start(self._command, self.log, self._environment)

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    @property
    def runs(self) -> set[str]:
        return {path.name for path in Path(self.store, "runs").glob("*")}

    @property
    def run(self) -> str:
        (run,) = self.runs - self._known
        return run

    def noted(self, what: str) -> list[str]:
        """Return what was noted, each as `WHAT.HOST.PID.ID`."""
        return sorted(path.name for path in self.scratch.glob(f"{what}*"))

    def until(self, *what: str, seconds: float = 120) -> None:
        """Wait until all this was noted; fail with the driver's words if it ends before."""
        ends = time.monotonic() + seconds
        hosts.until(lambda: self.ended or all(map(self.noted, what)) or time.monotonic() > ends, seconds=seconds + 5)
        assert all(map(self.noted, what)), f"{what}: {self.log.read_text()}"

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in EventReader(self.store, self.run).poll() if event["kind"] == kind]

    def end(self, seconds: float = 180) -> int:
        """Wait for the end of the driver and return its exit code; fail with its words if it does not come."""
        ends = time.monotonic() + seconds
        hosts.until(lambda: self.ended or time.monotonic() > ends, seconds=seconds + 5)
        assert self.ended, self.log.read_text()
        return int(self.process.returncode)

    def record(self) -> dict[str, Any]:
        return dict(json.loads(Path(self.store, "runs", self.run, "run.json").read_text()))

    def digests(self) -> dict[str, str]:
        return {step["name"]: step["digest"] for step in self.record()["steps"]}

    def ranks(self) -> dict[int, str]:
        """Return on which host each rank of the newest generation is."""
        placed = [event for event in self.events("placement") if "rank" in event]
        newest = max(event["generation"] for event in placed)
        return {event["rank"]: event["host"] for event in placed if event["generation"] == newest}


def workers_on(host: Any) -> list[str]:
    """Return the titles of the processes in which a run's work is done."""
    titles = map(hosts.title_of, host.processes("ray::"))
    return [title for title in titles if "Agent" not in title and "IDLE" not in title]


def run_both(cluster: Any, short: Path, name: str, **more: str) -> Drive:
    """Start a map and a gang, and wait until every host has a shard in hand and the gang walks."""
    sizes = {"n": str(NUM_SHARDS), "steps": str(NUM_STEPS), "hold": str(HOLD)}
    drive = Drive(cluster, cluster.head, str(short / name), short / f"{name}-notes", **sizes, **more)
    drive.until("step-0007", f"shard-{HOLD + len(WORKERS) - 1:04d}")
    return drive


def check_map(drive: Drive, *, again: int | None = None, lost: str = "") -> None:
    """Each shard was computed once, but for those that were lost in hand: one a host, for want of CPUs.

    That is one with a host that is `lost`, or all of them if the attempt that maps was there. What a host that is cut
    off goes on to compute for such an attempt, in vain, holds nobody up.
    """
    done = [name.split(".")[:2] for name in drive.noted("shard")]
    assert len({shard for shard, _ in done}) == NUM_SHARDS
    homes = []
    if lost:
        placed = drive.events("placement")
        homes = [event["host"] for event in placed if event["name"] == "squares" and "shard" not in event]
    in_vain = homes[:1] == [lost]
    again = again if again is not None else len(WORKERS) if in_vain else 1
    counted = len([shard for shard, host in done if not (in_vain and host == lost)])
    assert counted <= NUM_SHARDS + again, f"{homes}: {drive.noted('shard')}\n{drive.log.read_text()}"


def check_gang(drive: Drive, *, losses: int) -> None:
    """Each step was walked once, but for those since the last that was kept."""
    times = Counter(name.split("-g")[0] for name in drive.noted("step"))
    assert len(times) == NUM_STEPS
    assert sum(times.values()) <= NUM_STEPS + losses * KEEP_EVERY, times.most_common(6)


def check_nothing_is_left(cluster: Any, drive: Drive) -> None:
    """No worker process, actor, placement group or lease outlives a run."""
    ends = time.monotonic() + 30
    while (working := {host.name: titles for host in cluster.hosts.values() if (titles := workers_on(host))}) and (
        time.monotonic() < ends
    ):
        time.sleep(0.1)
    assert not working
    left = cluster.head.call(sys.executable, "-c", LEFT, cluster.address, environment=WATCHFUL)
    (said,) = [line for line in left.splitlines() if line.startswith("{")]  # Ray may say a word of its own at the end
    assert json.loads(said) == {"actors": [], "groups": []}
    leases = list(Path(drive.store).glob("artifacts/*/*/leases"))
    assert leases
    for folder in leases:
        names = {path.name for path in folder.iterdir()}
        taken = [name for name in names if "released" not in name]
        assert {name.replace(".json", ".released.json") for name in taken} <= names, names


def test_host_killed_under_a_map_and_a_gang_costs_only_its_own_work(cluster, undisturbed, short):
    drive = run_both(cluster, short, "killed")
    lost = cluster.hosts[drive.ranks()[0]]
    lost.die()
    (drive.scratch / "go").touch()
    assert drive.end() == 0, drive.log.read_text()
    assert drive.digests() == undisturbed
    check_map(drive, lost=lost.name)
    check_gang(drive, losses=1)
    exits = drive.events("exit")
    assert {event["cause"] for event in exits} == {"worker lost"}
    assert any(lost.address in event["message"] or lost.name in event["message"] for event in exits), exits
    check_nothing_is_left(cluster, drive)


@pytest.mark.parametrize("least", [0, 30])
def test_network_cut_under_a_map_and_a_gang_lets_no_zombie_commit(cluster, undisturbed, short, least):
    """The gang's only rank needs no network and walks on behind the cut, until its next state to keep is refused."""
    drive = run_both(cluster, short, f"cut{least}", ranks="1", wait="9")
    cut = cluster.hosts[drive.ranks()[0]]
    began = time.monotonic()
    cut.cut()
    (drive.scratch / "go").touch()
    try:
        drive.until("generation-2", "refused")
        hosts.until(lambda: time.monotonic() - began > least, seconds=least + 1)
    finally:
        cut.mend()
    assert drive.end() == 0, drive.log.read_text()
    assert drive.digests() == undisturbed
    assert [name.split(".")[0] for name in drive.noted("refused")] == ["refused-0010-g1"]
    check_map(drive, lost=cut.name)
    check_gang(drive, losses=1)
    check_nothing_is_left(cluster, drive)


def test_driver_cut_off_for_longer_than_the_cluster_waits_says_so_and_continues(cluster, undisturbed, short):
    cluster.start("desk")
    sizes = {"n": str(NUM_SHARDS), "hold": str(HOLD)}
    drive = Drive(cluster, cluster.desk, str(short / "desk"), short / "desk-notes", pipeline="squares", **sizes)
    drive.until(f"shard-{HOLD + len(WORKERS) - 1:04d}")
    cluster.desk.cut()
    try:
        for host in cluster.workers:  # nobody works for a driver that the cluster has given up
            hosts.until(lambda host=host: not workers_on(host), seconds=30)
    finally:
        cluster.desk.mend()
    assert drive.end() == 3, drive.log.read_text()
    said = drive.log.read_text()
    assert "Ray has ended on this machine" in said
    assert "hint: join the cluster again" in said
    cluster.await_end("desk")
    drive.again()
    assert drive.end(seconds=30) == 3, drive.log.read_text()
    assert "this machine is no node of the Ray cluster" in drive.log.read_text()
    cluster.start("desk")
    (drive.scratch / "go").touch()
    drive.again()
    assert drive.end() == 0, drive.log.read_text()
    assert drive.digests() == {"squares": undisturbed["squares"]}
    check_map(drive, again=len(WORKERS))
    check_nothing_is_left(cluster, drive)


@pytest.mark.parametrize("seconds", [12, 60])
def test_store_cut_off_leaves_nothing_half_written_and_the_run_continues(cluster, place, undisturbed, short, seconds):
    bucket = f"cut{seconds}"
    made = "import boto3, sys; boto3.client('s3').create_bucket(Bucket=sys.argv[1])"
    cluster.head.call(sys.executable, "-c", made, bucket, environment=place.aws)
    scratch = short / f"{bucket}-notes"
    drive = Drive(
        cluster,
        cluster.head,
        f"s3://{bucket}/store",
        scratch,
        environment=place.aws,
        n=str(NUM_SHARDS),
        steps=str(NUM_STEPS),
        hold=str(HOLD),
    )
    drive.until("step-0007", f"shard-{HOLD + len(WORKERS) - 1:04d}")
    in_hand = sum(name >= f"shard-{HOLD:04d}" for name in drive.noted("shard"))  # on as many CPUs as there are
    place.bucket.cut()
    (drive.scratch / "go").touch()
    began = time.monotonic()
    try:
        hosts.until(lambda: time.monotonic() - began > seconds or drive.process.poll() is not None, seconds=seconds + 1)
    finally:
        place.bucket.mend()
    if drive.end() != 0:  # its limit is shorter than that: then it says so, and the same command goes on
        said = drive.log.read_text()
        assert "storage refused" in said or "could not reach its store" in said, said
        assert "hint: " in said
        drive.again()
        assert drive.end() == 0, drive.log.read_text()
    said = drive.log.read_text()
    assert all(digest[:8] in said for digest in undisturbed.values()), said
    cluster.head.call(
        MARIN, "verify", "--store", drive.store, environment=place.aws
    )  # fails for a file that is not what was written
    check_map(drive, again=0 if seconds < 30 else in_hand)
    check_gang(drive, losses=0 if seconds < 30 else 2)
