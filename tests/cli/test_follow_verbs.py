"""`watch`, `stop`, `status` and `logs --follow`, beside a run in a process of its own that they never touch."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from marin.store import Store, Submission, write_submission
from marin.store.stop import LOOK_SECONDS

STEPS = """
import threading
from pathlib import Path
from marin import Context, Shard, Step, Value, pipeline


class Wait(Step[Value[int]]):
    folder: str

    def run(self, ctx: Context) -> Value[int]:
        print("waiting now", flush=True)
        for number in range(600):
            ctx.progress(number, 600, "looks")
            if Path(self.folder, "gate").exists():
                print("the gate is open", flush=True)
                return Value.write(ctx.output, 1)
            threading.Event().wait(0.1)
        raise TimeoutError


class Fall(Step[Value[int]]):
    waited: Step[Value[int]]

    def run(self, ctx: Context) -> Value[int]:
        raise ValueError("it fell")


@pipeline
def waiting(folder: str):
    return [Wait(folder=folder)]


@pipeline
def twice(folder: str):
    return [Wait(folder=folder).named("first"), Wait(folder=folder + "/never").named("second")]


@pipeline
def falling(folder: str):
    return [Fall(waited=Wait(folder=folder))]
"""

COMMAND = [sys.executable, "-m", "marin"]


class Running:
    """A run that waits for a gate, and the folder with its store."""

    def __init__(self, folder: Path, target: str) -> None:
        self.folder = folder
        self.store = folder / "own"
        (folder / "waits.py").write_text(STEPS)
        arguments = ["run", target, "--folder", str(folder), "--backend", "inline", "--store", str(self.store)]
        self.process = subprocess.Popen(
            [*COMMAND, *arguments], cwd=folder, stderr=subprocess.PIPE, stdout=subprocess.PIPE
        )
        until(lambda: "waiting now" in "".join(path.read_text() for path in self.store.rglob("log.txt")))

    @property
    def id(self) -> str:
        (run,) = Store.open(str(self.store), write=False).runs()
        return run

    def open_gate(self) -> None:
        (self.folder / "gate").touch()

    def end(self) -> int:
        self.process.communicate(timeout=60)
        return self.process.returncode


def until(condition: Callable[[], object]) -> None:
    ends = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < ends
        threading.Event().wait(0.02)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    started: list[Running] = []

    def start(target: str = "waits.py:waiting") -> Running:
        started.append(Running(tmp_path, target))
        return started[-1]

    yield start
    for each in started:
        each.process.kill()
        each.process.communicate()


def beside(marin, run: Running, *arguments: str, meanwhile: Callable[[], object], seconds: float = 0.5):
    """Call a verb here while something happens a little later."""
    timer = threading.Timer(seconds, meanwhile)
    timer.start()
    try:
        return marin(*arguments, "--store", str(run.store))
    finally:
        timer.join()


def test_watch_shows_a_run_until_it_is_done_and_exits_as_it_does(marin, running):
    run = running()
    done = beside(marin, run, "watch", run.id[:12], meanwhile=run.open_gate)
    assert (done.code, run.end()) == (0, 0)
    assert " wait running\n" in done.err
    assert " wait done in " in done.err
    assert "wait" in done.out, "the table of what it came to"


def test_watch_failed_run_names_the_cause_and_the_next_command(marin, running):
    run = running("waits.py:falling")
    done = beside(marin, run, "watch", meanwhile=run.open_gate)
    assert (done.code, run.end()) == (1, 1)
    assert "error: step fall failed: ValueError: it fell" in done.err
    assert "\nthen: " in done.err
    assert f"marin run --backend inline waits.py:falling --folder {run.folder}" in done.err


def test_watch_json_is_what_run_json_says(marin, ran):
    done = marin("watch", "--json")
    assert done.code == 0
    assert {key: done.json[key] for key in ran.json if key != "steps"} | {"steps": ran.json["steps"]} == ran.json
    for watched, said in zip(done.json["steps"], ran.json["steps"], strict=True):
        assert {key: watched[key] for key in said} == said


def test_watch_of_a_killed_driver_says_that_it_is_lost(marin, running):
    run = running()
    done = beside(marin, run, "watch", meanwhile=run.process.kill)
    assert done.code == 1
    assert f"lost: the driver of run {run.id} is gone" in done.err
    assert "\nthen: " in done.err
    assert "marin run --backend inline waits.py:waiting" in done.err


def test_status_of_a_killed_driver_knows_what_its_steps_made(marin, running):
    run = running("waits.py:twice")
    run.open_gate()

    def states() -> list[str]:
        return [step["state"] for step in marin("status", run.id, "--json", "--store", str(run.store)).json["steps"]]

    until(lambda: states() == ["done", "running"])
    run.process.kill()
    run.process.wait()
    first = marin("status", run.id, "--json", "--store", str(run.store)).json["steps"][0]
    (manifest,) = (run.store / "artifacts" / "wait").glob("*/manifest.json")
    assert first["digest"] == json.loads(manifest.read_text())["digest"]
    assert first["artifact"].endswith(str(manifest.parent))


def test_watch_interrupted_leaves_the_run_alone(running):
    run = running()
    command = [*COMMAND, "watch", "--store", str(run.store)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as watching:
        assert "wait running" in watching.stderr.readline()
        watching.send_signal(signal.SIGINT)
        _, err = watching.communicate(timeout=30)
    assert watching.returncode == 130
    assert f"run {run.id} goes on without you" in err
    for verb in ("watch", "logs", "stop"):
        assert f"  marin {verb} {run.id}" in err
    run.open_gate()
    assert run.end() == 0


def test_logs_follow_writes_what_comes_until_the_run_is_over(marin, running):
    run = running()
    done = beside(marin, run, "logs", "--follow", "--step", "wait", meanwhile=run.open_gate)
    assert run.end() == 0
    assert done.out.splitlines()[1:] == ["waiting now", "the gate is open"]
    assert done.out.startswith(f"== wait {run.id}-")
    lines = [json.loads(line) for line in marin("logs", "-f", "--json", "--store", str(run.store)).out.splitlines()]
    assert [(line["name"], line["file"]) for line in lines] == [("wait", "log.txt")]
    again = marin("logs", "--attempt", "2", "--store", str(run.store))
    assert (again.code, again.out) == (2, "")
    assert f"run {run.id} has no log of attempt 2\nhint: there are {run.id}-" in again.err
    followed = marin("logs", "--follow", "--rank", "5", "--store", str(run.store))
    assert (followed.code, "has no log of rank 5\nhint: there are" in followed.err) == (2, True)


def test_logs_followed_from_before_the_plan_name_a_step_that_it_lacks(marin, ran):
    store = Store.open(os.environ["MARIN_STORE"], write=True)
    sent = Submission("29991201-000000-abcd", "marin-1", "http://h:8265", "2999-12-01T00:00:00+00:00", "p.py")
    write_submission(store.url, sent)
    steps = [{"name": "wait", "step": "wait", "state": "running"}]
    timer = threading.Timer(
        0.5, lambda: store.write_run(sent.run, {"run": sent.run, "state": "running", "steps": steps})
    )
    timer.start()
    done = marin("logs", sent.run, "--follow", "--step", "wiat")
    timer.join()
    assert done.code == 2
    assert f"run {sent.run} has no step `wiat`\nhint: did you mean `wait`" in done.err


def test_stop_is_shown_by_status_and_obeyed_between_steps(marin, running):
    run = running("waits.py:falling")
    stop = marin("stop", run.id[:14], "--json", "--store", str(run.store))
    assert stop.json == {"schema": 1, "run": run.id, "state": "running", "asked": True, "first": True, "now": False}
    assert "begins nothing new" in stop.err
    assert f"follow it: marin watch {run.id} --store {run.store}" in stop.err
    status = marin("status", "--store", str(run.store))
    assert "stopping: " in status.out
    assert marin("status", "--json", "--store", str(run.store)).json["stop_asked"]
    assert marin("stop", run.id, "--json", "--store", str(run.store)).json["first"] is False
    done = beside(marin, run, "stop", run.id, "--wait", meanwhile=run.open_gate, seconds=LOOK_SECONDS)
    assert (done.code, run.end()) == (0, 130)
    assert f"run {run.id}: stopped" in done.err
    last = marin("status", "--store", str(run.store))
    assert f"run {run.id}: stopped" in last.out
    assert last.err.startswith("to go on: ")
    assert "marin run --backend inline waits.py:falling" in last.err


def test_stop_of_a_run_that_is_over_or_lost_says_so(marin, ran, running):
    done = marin("stop", ran.json["run"])
    assert (done.code, done.err) == (0, f"run {ran.json['run']} is over already: done\n")
    run = running()
    run.process.kill()
    run.process.wait()
    lost = marin("stop", run.id, "--json", "--store", str(run.store))
    assert (lost.json["state"], lost.json["asked"]) == ("lost", False)
    assert "its driver is gone\nto go on: " in lost.err
    assert "marin run --backend inline" in lost.err


def test_stop_needs_one_run(marin, ran):
    assert marin("stop", "2").code == 0
    marin("run", "counting.py", "--backend", "inline", "--lr", "0.2")
    several = marin("stop", "2")
    assert several.code == 2
    assert "2 runs begin with 2" in several.err
    assert "the store has no run x" in marin("stop", "x").err
    assert marin("stop").code == 2


def test_submitted_run_that_has_not_begun_waits_and_can_be_stopped(marin, ran):
    store = Store.open(os.environ["MARIN_STORE"], write=True)
    sent = Submission("29991201-000000-abcd", "marin-1", "http://h:8265", "2999-12-01T00:00:00+00:00", "p.py")
    write_submission(store.url, sent)
    status = marin("status")
    assert "run 29991201-000000-abcd: waiting\n" in status.out
    assert "submitted 2999-12-01 00:00:00 UTC as Ray job marin-1 to http://h:8265; not begun for 0.0 s" in status.out
    assert marin("status", "--json").json["ray_job"] == "marin-1"
    assert "will stop as soon as it does" in marin("stop", "2999").err
    assert "ray job logs marin-1 --address http://h:8265" in marin("logs").err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_run_told_to_stop_ends_with_130_and_no_lease(running, number):
    run = running()
    run.process.send_signal(number)
    _, err = run.process.communicate(timeout=30)
    assert run.process.returncode == 130
    assert b"stopping: what is finished is kept" in err
    leases = [path.name for path in run.store.rglob("leases/*")]
    assert sorted(leases) == ["1.json", "1.released.json"]


def test_driver_of_a_submitted_run_looks_for_its_submission_and_runs_once(marin, project, tmp_path):
    arguments = ("run", "counting.py", "--backend", "inline", "--run-id", "20261201-1")
    elsewhere = marin(*arguments)
    assert elsewhere.code == 3
    assert "is not the one that run 20261201-1 was submitted with" in elsewhere.err
    assert "a folder of your machine is not seen there" in elsewhere.err
    store = Store.open(os.environ["MARIN_STORE"], write=True)
    producer = {"user": "ada", "commit": "c0ffee", "dirty": True, "diff": "d1ff"}
    sent = Submission("20261201-1", "marin-1", "http://h:8265", "2026-12-01T00:00:00+00:00", "p.py", producer=producer)
    write_submission(store.url, sent)
    assert marin(*arguments).code == 0
    made = store.manifests("learn")[0].producer
    assert (made.user, made.commit, made.dirty, made.diff) == ("ada", "c0ffee", True, "d1ff")
    again = marin(*arguments)
    assert again.code == 2
    assert "run 20261201-1 has begun already" in again.err


def test_submit_of_what_cannot_be_sent_says_so_before_anything_is_sent(marin, tmp_path):
    assert marin("submit", "counting.py").code == 2, "an address is needed"
    address = marin("submit", "counting.py", "--address", "10.0.0.1:8265")
    assert address.code == 2
    assert "give that of the cluster's dashboard, `http://HOST:8265`" in address.err
    (tmp_path / "outside.py").write_text("from several import one\n")
    outside = marin("submit", str(tmp_path / "outside.py"), "--address", "http://127.0.0.1:8265")
    assert outside.code == 2
    assert "outside.py lies outside the working tree" in outside.err
    option = marin("submit", "counting.py", "--lrr", "1", "--address", "http://127.0.0.1:8265")
    assert option.code == 2
    assert "did you mean `--lr`?" in option.err
    assert not list(tmp_path.glob("store/runs/*"))


def test_run_that_ended_as_a_whole_tells_why_to_whoever_asks(marin):
    store = Store.open(os.environ["MARIN_STORE"], write=True)
    error = {"type": "ClusterError", "message": "no node has a GPU", "where": "step a", "hint": "ask for less"}
    steps = [{"name": "a", "step": "a", "state": "waiting"}]
    record = {"run": "20261201-2", "state": "failed", "store": store.url, "steps": steps, "error": error}
    store.write_run("20261201-2", record)
    watched = marin("watch")
    assert watched.code == 3
    assert "error: no node has a GPU\n  at   step a\nhint: ask for less" in watched.err
    assert "a     stopped" in watched.out
    assert "no node has a GPU" in marin("status").err
    stands = marin("status", "--json").json
    assert (stands["error"], stands["steps"][0]["state"]) == (error, "stopped")
    assert marin("watch", "--json").json == stands
