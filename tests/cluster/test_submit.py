"""`marin submit` and `run --address` on a cluster that a token guards: code that travels, terminals that close, stops.

One head with a dashboard serves all tests. Pipelines lie in a git repository that only this test has, so what workers
import from elsewhere was sent to them.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import harness
import psutil
import pytest

from marin.base.errors import ClusterError
from marin.graph.artifact import Value
from marin.run.backends import ray_connect
from marin.run.backends.ray_connect import knock
from marin.store import Store, read_submission

LIMIT_SECONDS = 60
PIPELINE = '''
import threading
from pathlib import Path
from marin import Context, Placement, Shard, Step, Value, pipeline
import factors


def look(shard: Shard, output, *, gate: Placement[str]) -> dict:
    path = Path(gate)
    for _ in range(6000):
        if int(shard.name) < 2 or path.exists():
            break
        threading.Event().wait(0.05)
    output.write("n.txt", shard.name.encode())
    return {"n": factors.FACTOR}


class Look(Step[Value[list[str]]]):
    """Shards of which all but two wait for a gate; returns where the code and this process were."""

    gate: Placement[str]
    count: int

    def run(self, ctx: Context) -> Value[list[str]]:
        ctx.map(look, [Shard(str(n), f"{n:064x}", (), n) for n in range(self.count)], gate=self.gate)
        print("looked", flush=True)
        return Value.write(ctx.output, [look.__code__.co_filename, str(Path.cwd())])


class Wait(Step[Value[int]]):
    seconds: float
    after: tuple[Step[Value[list[str]]], ...] = ()

    def run(self, ctx: Context) -> Value[int]:
        for _ in range(int(self.seconds * 10)):
            threading.Event().wait(0.1)
        return Value.write(ctx.output, 1)


@pipeline
def looking(gate: str, count: int = 4):
    return [Wait(seconds=0.1, after=(Look(gate=gate, count=count),))]


@pipeline
def waiting(seconds: float = 300.0):
    return [Wait(seconds=seconds)]
'''


class Lab(NamedTuple):
    """A cluster, and a repository of pipelines beside it."""

    jobs: str
    gcs: str
    client: str
    project: Path
    head: harness.Node


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    project = tmp_path_factory.mktemp("project")
    (project / "lab").mkdir()
    (project / "lab" / "looks.py").write_text(PIPELINE)
    (project / "lab" / "factors.py").write_text("FACTOR = 3\n")
    (project / "lab" / "local.py").write_text("import secret\nfrom looks import waiting\n")
    (project / "lab" / "secret.py").write_text("")
    (project / "lab" / "needs_key.py").write_text("import os\nos.environ['LAB_KEY']\nfrom looks import waiting\n")
    (project / ".gitignore").write_text("secret.py\n__pycache__\n")
    git = ["git", "-C", str(project), "-c", "user.name=ada", "-c", "user.email=ada@lab"]
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *arguments], check=True)
    folder = Path(tempfile.mkdtemp(prefix="ms-"))  # short: Unix sockets lie below
    gcs, jobs, client = (harness.free_port() for _ in range(3))
    ports = [f"--port={gcs}", f"--dashboard-port={jobs}", f"--ray-client-server-port={client}"]
    where = ["--dashboard-host=127.0.0.1", f"--node-ip-address={harness.ADDRESS}", f"--temp-dir={folder / 'r'}"]
    size = ["--num-cpus=5", "--object-store-memory=100000000", "--disable-usage-stats"]
    agents = ["--dashboard-agent-listen-port=0", "--dashboard-agent-grpc-port=0", "--metrics-export-port=0"]
    command = [harness.RAY, "start", "--head", "--block", *ports, *where, *size, *agents]
    head = harness.Node("head", command, folder / "head.log", {"RAY_DISABLE_MEMORY_MONITOR": "1"})
    try:
        head.await_start()
        at = f"127.0.0.1:{gcs}"
        yield Lab(f"http://127.0.0.1:{jobs}", at, f"ray://127.0.0.1:{client}", project, head)
    finally:
        head.die()
        shutil.rmtree(folder, ignore_errors=True)


def marin(lab: Lab, *arguments: str, environment: Mapping[str, str] = {}) -> subprocess.Popen[str]:
    """Start a verb in the folder of pipelines, in a session of its own."""
    return subprocess.Popen(
        [harness.MARIN, *arguments],
        cwd=lab.project / "lab",
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=LIMIT_SECONDS)
    return process.returncode, out, err


def runs_of(store: Path) -> list[str]:
    return [path.name for path in sorted((store / "runs").glob("*"))]


def states(store: Path, run: str) -> dict[str, str]:
    record = Store.open(str(store), write=False).read_run(run)
    return {step["name"]: step["state"] for step in record["steps"]}


def leases(store: Path) -> list[str]:
    return sorted(path.name for path in store.rglob("leases/*"))


def until(condition, process: subprocess.Popen[str]) -> None:
    try:
        harness.until(lambda: condition() or process.poll() is not None, seconds=LIMIT_SECONDS)
    finally:
        if process.poll() is not None:
            assert condition(), process.communicate()


def test_submit_follows_a_run_whose_code_and_commit_have_travelled(lab, tmp_path):
    store, gate = tmp_path / "store", tmp_path / "gate"
    gate.touch()
    arguments = ["looks.py:looking", "--gate", str(gate), "--address", lab.jobs, "--store", str(store), "--json"]
    code, out, err = ended(marin(lab, "submit", *arguments))
    assert code == 0, err
    sent = json.loads(out)
    assert (sent["ray_job"], sent["state"]) == (f"marin-{sent['run']}", "done")
    assert [step["state"] for step in sent["steps"]] == ["done", "done"]
    assert err.startswith(f"submitted run {sent['run']} as Ray job {sent['ray_job']} (5 files, ")
    assert " look done in " in err
    opened = Store.open(str(store), write=False)
    (look,) = opened.manifests("look")
    code_at, worker_at = Value.open(opened.contents(look)).value
    assert "_ray_pkg_" in code_at
    assert code_at.endswith("/lab/looks.py")
    assert "_ray_pkg_" in worker_at
    head = subprocess.run(
        ["git", "-C", str(lab.project), "rev-parse", "HEAD"], capture_output=True, text=True, check=True
    )
    assert (look.producer.commit, look.producer.dirty) == (head.stdout.strip(), False)
    assert look.run == sent["run"]


def test_terminal_that_closes_stops_nothing_a_stop_keeps_shards_and_submitting_again_goes_on(lab, tmp_path):
    store, gate = tmp_path / "store", tmp_path / "gate"
    arguments = ["looks.py:looking", "--gate", str(gate), "--address", lab.jobs, "--store", str(store)]
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # a terminal of its own, also where these run under nohup
    terminal = marin(lab, "submit", *arguments, "--grace", "3")
    signal.signal(signal.SIGHUP, before)
    until(lambda: len(list(store.glob("shards/*/*/manifest.json"))) == 2, terminal)
    os.killpg(terminal.pid, signal.SIGHUP)
    terminal.communicate()
    (run,) = runs_of(store)
    status = json.loads(ended(marin(lab, "status", "--store", str(store), "--json"))[1])
    assert (status["state"], status["ray_job"]) == ("running", f"marin-{run}")
    code, _, err = ended(marin(lab, "stop", run, "--wait", "--store", str(store)))
    assert (code, f"run {run}: stopped" in err) == (0, True), err
    assert states(store, run) == {"look": "stopped", "wait": "stopped"}
    assert leases(store) == ["1.json", "1.released.json"]
    gate.touch()
    code, _, err = ended(marin(lab, "submit", *arguments))
    assert code == 0, err
    record = Store.open(str(store), write=False).read_run(runs_of(store)[-1])
    assert record["steps"][0]["shards"] == {"total": 4, "reused": 2, "computed": 2}


def test_ray_job_stop_is_a_stop(lab, tmp_path):
    store = tmp_path / "store"
    arguments = ["looks.py:waiting", "--address", lab.jobs, "--store", str(store), "--grace", "1"]
    following = marin(lab, "submit", *arguments)
    until(lambda: leases(store), following)
    (run,) = runs_of(store)
    job = read_submission(str(store), run).ray_job
    subprocess.run(
        [harness.RAY, "job", "stop", job, "--address", lab.jobs], check=True, capture_output=True, timeout=60
    )
    code, _, err = ended(following)
    assert code == 130, err
    assert f"then: marin submit --address {lab.jobs} --grace 1.0 looks.py:waiting" in err
    assert leases(store) == ["1.json", "1.released.json"]


def test_submit_of_code_that_does_not_travel_shows_what_the_driver_said(lab, tmp_path):
    store = tmp_path / "store"
    code, _, err = ended(marin(lab, "submit", "local.py:waiting", "--address", lab.jobs, "--store", str(store)))
    assert code == 2, err
    assert "error: local.py imports `secret`, which is not there" in err
    assert ended(marin(lab, "watch", "--store", str(store)))[0] == 2


def test_submit_whose_cluster_lacks_a_variable_shows_the_error_of_the_users_line(lab, tmp_path):
    store = tmp_path / "store"
    arguments = ["needs_key.py:waiting", "--address", lab.jobs, "--store", str(store), "--json"]
    code, out, err = ended(marin(lab, "submit", *arguments, environment={"LAB_KEY": "here"}))
    assert code == 2, err
    told = json.loads(out)
    assert (told["state"], told["error"]["type"]) == ("failed", "ConfigurationError")
    assert "KeyError: 'LAB_KEY'" in told["error"]["message"]


def test_interrupt_of_the_follower_leaves_the_run_which_goes_on(lab, tmp_path):
    store = tmp_path / "store"
    following = marin(lab, "submit", "looks.py:waiting", "--address", lab.jobs, "--store", str(store))
    until(lambda: leases(store), following)
    following.send_signal(signal.SIGINT)
    code, _, err = ended(following)
    (run,) = runs_of(store)
    assert (code, f"run {run} goes on without you" in err) == (130, True), err
    assert f"  marin stop {run} --store {store}" in err
    assert json.loads(ended(marin(lab, "status", "--store", str(store), "--json"))[1])["state"] == "running"
    assert ended(marin(lab, "stop", run, "--now", "--wait", "--store", str(store)))[0] == 0


def test_driver_that_is_killed_is_told_by_its_last_lines_and_recorded(lab, tmp_path):
    store = tmp_path / "store"
    following = marin(lab, "submit", "looks.py:waiting", "--address", lab.jobs, "--store", str(store))
    until(lambda: leases(store), following)
    (run,) = runs_of(store)
    for process in lab.head.family():
        if process.status() != psutil.STATUS_ZOMBIE and run in process.cmdline():
            process.kill()
    code, _, err = ended(following)
    assert code == 1, err
    assert "error: the driver ended without a last word in the store (failed)" in err
    assert "what was finished is kept" in err
    record = Store.open(str(store), write=False).read_run(run)
    assert (record["state"], record["error"]["type"]) == ("failed", "MarinError")


@pytest.mark.parametrize("token", ["b" * 48, None])
def test_token_that_is_not_the_clusters_is_named_at_once(lab, tmp_path, monkeypatch, token):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("RAY_AUTH_TOKEN")
    if token:
        monkeypatch.setenv("RAY_AUTH_TOKEN", token)
    says = "the token here is not the cluster's" if token else "there is none here"
    for address in (lab.gcs, lab.client):
        with pytest.raises(ClusterError, match="does not let you in") as caught:
            knock(address)
        assert says in caught.value.hint
    began = time.monotonic()
    for verb, address in (("submit", lab.jobs), ("run", lab.gcs), ("doctor", lab.gcs)):
        target = ["looks.py:waiting"] if verb != "doctor" else []
        arguments = [*target, "--address", address, "--store", str(tmp_path / "store")]
        code, out, err = ended(marin(lab, verb, *arguments))
        assert (code, says in out + err) == (3, True), out + err
    assert time.monotonic() - began < 60
    assert runs_of(tmp_path / "store") == []


@pytest.mark.parametrize("verb", ["submit", "run"])
def test_mode_that_sends_no_token_is_named(lab, tmp_path, verb):
    address = lab.jobs if verb == "submit" else lab.gcs
    arguments = ["looks.py:waiting", "--address", address, "--store", str(tmp_path / "store")]
    code, _, err = ended(marin(lab, verb, *arguments, environment={"RAY_AUTH_MODE": "disabled"}))
    assert (code, "RAY_AUTH_MODE=disabled here keeps Ray from sending a token: unset it\n" in err) == (3, True), err
    assert runs_of(tmp_path / "store") == []


def test_what_no_cluster_could_read_is_refused_before_anything_is_sent(lab, tmp_path):
    arguments = ["looks.py:looking", "--address", lab.jobs, "--store", str(tmp_path / "store"), "--gate"]
    code, _, err = ended(marin(lab, "submit", *arguments, "\udcff"))
    assert (code, "is no UTF-8" in err) == (2, True), err
    secret = "first\nsecond"
    code, _, err = ended(marin(lab, "submit", *arguments, "x", environment={"RAY_AUTH_TOKEN": secret}))
    assert (code, "the token here has a character" in err, "second" in err) == (2, True, False), err
    assert not (tmp_path / "store").exists()


def test_token_in_a_file_lets_in(lab, tmp_path, monkeypatch):
    (tmp_path / "token").write_text(os.environ["RAY_AUTH_TOKEN"] + "\n")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.delenv("RAY_AUTH_TOKEN")
    knock(lab.gcs)
    knock(lab.client)


FAR = """
import sys
from marin.run.backends import ray_connect
ray_connect._is_mine = lambda ip: False  # stands for a cluster on other machines
from marin.cli.app import main
main(sys.argv[1:])
"""


@pytest.mark.parametrize("kind", ["gcs", "client"])
def test_run_with_an_address_elsewhere_sends_the_working_tree(lab, tmp_path, kind):
    store, gate = tmp_path / "store", tmp_path / "gate"
    gate.touch()
    arguments = ["run", "looks.py:looking", "--gate", str(gate), "--count", "2", "--address", getattr(lab, kind)]
    command = [sys.executable, "-c", FAR, *arguments, "--store", str(store)]
    done = subprocess.run(command, cwd=lab.project / "lab", capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr
    opened = Store.open(str(store), write=False)
    (look,) = opened.manifests("look")
    code_at, _ = Value.open(opened.contents(look)).value
    assert "_ray_pkg_" in code_at
    assert code_at.endswith("/lab/looks.py")


def test_run_from_a_machine_without_a_node_says_so_at_once(lab, tmp_path, monkeypatch):
    monkeypatch.setattr(ray_connect.psutil, "process_iter", lambda attrs: [])  # stands for another machine
    with pytest.raises(ClusterError, match="this machine is no node of the Ray cluster") as raised:
        ray_connect.connect(lab.gcs, {}, [], None)
    assert "joins it" in raised.value.hint


DYING = """
import os, sys
import psutil
from marin.run.backends import ray as backend
asked = backend.ask_nodes
def ask(*arguments):
    for process in psutil.Process(int(os.environ["HEAD"])).children(recursive=True):
        if "--mode=specific-server" in process.cmdline():
            process.kill()
    return asked(*arguments)
backend.ask_nodes = ask
from marin.cli.app import main
main(sys.argv[1:])
"""


def test_server_of_ray_client_that_dies_while_nodes_are_asked_is_named(lab, tmp_path):
    store = tmp_path / "store"
    arguments = ["run", "looks.py:waiting", "--address", lab.client, "--store", str(store), "--json"]
    more = {"HEAD": str(lab.head.process.pid), "RAY_CLIENT_RECONNECT_GRACE_PERIOD": "3"}
    command, environment = [sys.executable, "-c", DYING, *arguments], {**os.environ, **more}
    done = subprocess.run(
        command, cwd=lab.project / "lab", env=environment, capture_output=True, text=True, timeout=90, check=False
    )
    assert done.returncode == 3, done.stderr
    told = json.loads(done.stdout)
    assert told["error"]["message"].startswith("the connection to the Ray cluster is lost")
    assert told["run"] in done.stderr
    assert "Traceback" not in done.stderr
    assert leases(store) == ["1.json", "1.released.json"]


def client_servers(lab: Lab) -> list[psutil.Process]:
    living = [process for process in lab.head.family() if process.status() != psutil.STATUS_ZOMBIE]
    return [process for process in living if "ray.util.client.server" in process.cmdline()]


def test_server_of_ray_client_that_is_killed_ends_the_run_with_the_next_command(lab, tmp_path):  # the head goes with it
    store = tmp_path / "store"
    arguments = ["looks.py:waiting", "--address", lab.client, "--store", str(store), "--json"]
    driver = marin(lab, "run", *arguments, environment={"RAY_CLIENT_RECONNECT_GRACE_PERIOD": "3"})
    until(lambda: list(store.rglob("log.txt")), driver)
    for process in client_servers(lab):
        process.kill()
    code, out, err = ended(driver)
    assert code == 3, err
    error = json.loads(out)["error"]
    assert error["message"].startswith("the connection to the Ray cluster is lost")
    assert error["where"] == lab.client
    assert "run the same command again" in error["hint"]
    assert leases(store) == ["1.json", "1.released.json"]


def test_connection_of_ray_client_that_dies_in_its_fork_is_made_again(monkeypatch):
    calls = []

    def init(**_: object) -> None:
        calls.append(1)
        if len(calls) == 1:
            raise ConnectionAbortedError("Initialization failure from server:\nTraceback\nZombieProcess")

    monkeypatch.setattr(ray_connect.ray, "init", init)
    ray_connect._init("ray://127.0.0.1:1", {}, 10)
    assert len(calls) == 2
