"""`marin submit` and `run --address` before a cluster: addresses, what is never sent, jobs that end without a word.

The job server is a fake: it takes jobs and runs none, so that each end of a job can be had at once.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
from jobserver import JobServer, job_server

from marin.base.errors import StoreError
from marin.store import Store, Submission, read_submission, write_submission

PLACES = """
from marin import Context, Step, Value, pipeline


class First(Step[Value[int]]):
    number: int

    def run(self, ctx: Context) -> Value[int]:
        return Value.write(ctx.output, 1)


class Second(Step[Value[int]]):
    first: Step[Value[int]]

    def run(self, ctx: Context) -> Value[int]:
        return Value.write(ctx.output, 2)


@pipeline
def placed(place: str):
    return [Second(first=First(number=1).at(place)), First(number=2).named("alone")]
"""


@pytest.fixture
def jobs(project, tmp_path, monkeypatch) -> Iterator[JobServer]:
    """A job server that lets everybody in; the folder of pipelines is all that travels."""
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with job_server() as server:
        yield server


def stored() -> Store:
    return Store.open(os.environ["MARIN_STORE"], write=True)


def runs_of(tmp_path) -> list[str]:
    return [path.name for path in (tmp_path / "store").glob("runs/*")]


def only_record() -> dict:
    (run,) = stored().runs()
    record = stored().read_run(run)
    assert record is not None
    return record


@pytest.mark.parametrize(
    ("verb", "address", "said"),
    [
        ("submit", "http://h:99999", "'99999' is no port"),
        ("submit", "ray://h:10001", "`marin run --address ray://h:10001` takes it"),
        ("submit", "http://h:8265/api", "give http://h:8265"),
        ("submit", "http://ada:s3cret@h:8265", "leave out all up to the @"),
        ("run", "http://h:8265", "`marin submit --address http://h:8265` takes"),
        ("run", "h:abc", "'abc' is no port"),
        ("run", "ray://h", "it has no port"),
        ("run", "ada:s3cret@h:6379", "leave out all up to the @"),
    ],
)
def test_malformed_address_is_wrong_usage_and_leaves_nothing(marin, tmp_path, verb, address, said):
    done = marin(verb, "counting.py", "--address", address)
    assert (done.code, said in done.err) == (2, True), done.err
    assert "s3cret" not in done.err
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(("verb", "scheme"), [("submit", "http://"), ("run", ""), ("run", "ray://")])
def test_address_that_does_not_answer_exits_with_three_and_leaves_no_run(marin, tmp_path, verb, scheme):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"{scheme}127.0.0.1:{closed.getsockname()[1]}"
        done = marin(verb, "counting.py", "--address", address, "--json")
    assert done.code == 3, done.err
    assert set(json.loads(done.out)) == {"schema", "error"}
    assert "stopped" not in done.err
    assert runs_of(tmp_path) == []


def test_place_below_the_working_tree_is_refused_before_anything_is_sent(marin, project, jobs, tmp_path):
    (project / "places.py").write_text(PLACES)
    arguments = ("submit", "places.py", "--address", jobs.address, "--detach", "--place")
    done = marin(*arguments, "results")
    assert done.code == 2, done.err
    assert "error: results would be a folder in the cluster's copy of the working tree" in done.err
    assert (jobs.jobs, runs_of(tmp_path)) == ([], [])
    assert marin(*arguments, str(tmp_path / "results")).code == 0
    assert marin(*arguments, "results", "-k", "alone").code == 0
    assert len(jobs.jobs) == 2


def test_detached_submit_says_what_it_sent_and_what_to_do_next(marin, jobs):
    done = marin("submit", "counting.py", "--address", f"{jobs.address.upper()}/", "--detach", "--json")
    assert done.code == 0, done.err
    (run,) = stored().runs()
    assert done.json == {"schema": 1, "run": run, "ray_job": f"marin-{run}"}
    for verb in ("watch", "logs", "stop"):
        assert f"  marin {verb} {run}" in done.err
    sent = read_submission(stored().url, run)
    assert sent is not None
    assert sent.address == jobs.address
    assert f"--run-id {run}" in jobs.jobs[0]["entrypoint"]


@pytest.mark.parametrize("name", ["RAY_ADDRESS", "RAY_API_SERVER_ADDRESS"])
def test_address_of_the_command_counts_before_variables(marin, jobs, monkeypatch, name):
    monkeypatch.setenv(name, "http://127.0.0.1:9")
    done = marin("submit", "counting.py", "--address", jobs.address, "--detach")
    assert done.code == 0, done.err
    assert len(jobs.jobs) == 1
    assert os.environ[name] == "http://127.0.0.1:9"


def test_followed_submit_writes_one_json_of_what_the_run_came_to(marin, jobs):
    def drive(job: dict) -> None:
        run = job["submission_id"].removeprefix("marin-")
        steps = [{"name": "a", "step": "a", "state": "done", "digest": "d1", "seconds": 1.0, "attempts": 1}]
        stored().write_run(run, {"run": run, "state": "done", "store": stored().url, "steps": steps})

    jobs.on_submit = drive
    done = marin("submit", "counting.py", "--address", jobs.address, "--json")
    assert done.code == 0, done.err
    (run,) = stored().runs()
    told = json.loads(done.out)
    assert (told["run"], told["ray_job"], told["state"], told["store"]) == (run, f"marin-{run}", "done", stored().url)
    assert [(step["name"], step["state"], step["digest"]) for step in told["steps"]] == [("a", "done", "d1")]


@pytest.mark.parametrize(
    ("status", "exit_code", "code", "state"),
    [
        ("FAILED", 3, 3, "failed"),
        ("FAILED", 1, 1, "failed"),
        ("FAILED", None, 3, "failed"),
        ("STOPPED", None, 130, "stopped"),
    ],
)
def test_job_that_ends_before_its_run_begins_is_recorded_for_everybody(marin, jobs, status, exit_code, code, state):
    jobs.ends(status, exit_code=exit_code, logs="error: no Python on the head has marin\n", message="it fell")
    done = marin("submit", "counting.py", "--address", jobs.address)
    assert done.code == code, done.err
    assert f"error: the job ended before the run began ({status.lower()})" in done.err
    assert "  at   error: no Python on the head has marin\n" in done.err
    record = only_record()
    assert record["state"] == state
    watched = marin("watch")
    assert watched.code == code
    assert "error: no Python on the head has marin" in watched.err
    assert f"run {record['run']}: {state}" in marin("status").out
    driver = marin("run", "counting.py", "--backend", "inline", "--run-id", record["run"])
    assert (driver.code, "has begun already" in driver.err) == (2, True), "it must not run any more"


def test_job_that_says_nothing_ends_with_rays_own_reason(marin, jobs):
    jobs.ends("FAILED", message="Runtime env setup failed: no space left")
    done = marin("submit", "counting.py", "--address", jobs.address, "--json")
    assert (done.code, done.json["error"]["type"]) == (3, "ClusterError")
    assert "Runtime env setup failed: no space left" in done.json["error"]["where"]


def test_driver_that_ends_with_a_run_under_way_shows_its_last_lines(marin, jobs):
    def drive(job: dict) -> None:
        run = job["submission_id"].removeprefix("marin-")
        steps = [{"name": "a", "step": "a", "state": "waiting"}]
        stored().write_run(run, {"run": run, "state": "running", "store": stored().url, "steps": steps})
        jobs.ends("FAILED", exit_code=3, logs="error: the disk of the store is full\nhint: free space\n")

    jobs.on_submit = drive
    done = marin("submit", "counting.py", "--address", jobs.address)
    assert done.code == 3, done.err
    assert "error: the driver ended without a last word in the store (failed)" in done.err
    assert "  at   error: the disk of the store is full\n" in done.err
    assert "what was finished is kept" in done.err
    assert only_record()["state"] == "failed"


def test_driver_that_ends_with_a_store_that_takes_nothing_exits_with_three(marin, jobs, tmp_path, monkeypatch):
    def drive(job: dict) -> None:
        run = job["submission_id"].removeprefix("marin-")
        stored().write_run(run, {"run": run, "state": "running", "store": stored().url, "steps": []})
        monkeypatch.setattr(Store, "write_run", refuse)
        jobs.ends("FAILED", exit_code=3, logs="error: the disk of the store is full\n")

    def refuse(*_: object) -> None:
        raise StoreError("the disk is full", hint="free space")

    jobs.on_submit = drive
    done = marin("submit", "counting.py", "--address", jobs.address, "--json")
    (run,) = stored().runs()
    assert done.code == 3, done.err
    told = json.loads(done.out)
    assert (told["run"], told["ray_job"]) == (run, f"marin-{run}")
    assert "the disk of the store is full" in told["error"]["where"]


def test_run_that_the_cluster_does_not_take_is_recorded_as_failed(marin, jobs):
    jobs.refuses = 500
    done = marin("submit", "counting.py", "--address", jobs.address)
    assert done.code == 3, done.err
    record = only_record()
    assert (record["state"], record["error"]["type"]) == ("failed", "ClusterError")
    assert marin("watch").code == 3


def test_interrupt_while_the_run_is_sent_takes_it_back(marin, jobs):
    jobs.on_submit = lambda job: os.kill(os.getpid(), signal.SIGINT)
    done = marin("submit", "counting.py", "--address", jobs.address, "--json")
    record = only_record()
    assert (done.code, done.json["error"]["type"], done.json["run"]) == (130, "Interrupted", record["run"]), done.err
    assert record["state"] == "stopped"
    driver = marin("run", "counting.py", "--backend", "inline", "--run-id", record["run"])
    assert (driver.code, "has begun already" in driver.err) == (2, True), "it must not run any more"


def test_interrupt_of_a_followed_submit_leaves_the_run_and_says_how_to_come_back(project, jobs, tmp_path):
    command = [sys.executable, "-m", "marin", "submit", "counting.py", "--address", jobs.address, "--json"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as following:
        killer = threading.Timer(60, following.kill)
        killer.start()
        assert following.stderr is not None
        assert "submitted run" in following.stderr.readline()
        while not any(JOB_PATH in path for path in jobs.asked):
            threading.Event().wait(0.05)
        following.send_signal(signal.SIGINT)
        out, err = following.communicate()
        killer.cancel()
    assert following.returncode == 130, err
    (run,) = stored().runs()
    assert json.loads(out) == {"schema": 1, "run": run, "ray_job": f"marin-{run}"}
    assert f"run {run} goes on without you" in err
    for verb in ("watch", "logs", "stop"):
        assert f"  marin {verb} {run}" in err
    assert stored().read_run(run) is None, "nothing was recorded: the run goes on"


JOB_PATH = "/api/jobs/marin-"


def submitted(run: str = "20261201-9", **more: object) -> Submission:
    sent = Submission(run, "marin-9", "http://h:8265", "2026-12-01T00:00:00+00:00", "counting.py", **more)
    write_submission(stored().url, sent)
    return sent


@pytest.mark.parametrize(
    ("target", "code", "kind", "said"),
    [
        ("needs_more.py", 2, "ConfigurationError", "imports `surely_not_installed`"),
        ("misnamed.py", 2, "ConfigurationError", "NameError: name 'y' is not defined"),
        ("counting.py:absent", 2, "ConfigurationError", "has no pipeline `absent`"),
    ],
)
def test_driver_that_cannot_begin_records_why(marin, target, code, kind, said):
    sent = submitted()
    done = marin("run", target, "--backend", "inline", "--run-id", sent.run)
    assert (done.code, said in done.err) == (code, True), done.err
    record = only_record()
    assert (record["state"], record["error"]["type"]) == ("failed", kind)
    watched = marin("watch")
    assert (watched.code, said in watched.err) == (code, True), watched.err


def test_driver_on_a_cluster_that_does_not_let_it_in_records_why(marin):
    sent = submitted()
    done = marin("run", "counting.py", "--address", "127.0.0.1:1", "--run-id", sent.run)
    assert done.code == 3
    assert only_record()["error"]["type"] == "ClusterError"


def test_run_json_of_a_run_that_ended_as_a_whole_names_the_run(marin, project):
    (project / "big.py").write_text(PLACES.replace("(number=2).named", "(number=2).on(cpus=4000).named"))
    done = marin("run", "big.py", "--place", str(project / "out"), "--json")
    (run,) = stored().runs()
    assert done.code == 3, done.err
    assert (done.json["run"], done.json["error"]["type"]) == (run, "ClusterError")


def test_next_command_is_whole_in_another_folder_and_short_in_its_own(marin, project, tmp_path, monkeypatch):
    monkeypatch.setenv("MARIN_STORE", ".marin")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "counting.py").write_text((project / "counting.py").read_text().replace("lr > 1", "lr > 0"))
    command = [sys.executable, "-m", "marin", "run", "counting.py", "--backend", "inline", "--lr", "5"]
    subprocess.run(command, capture_output=True, check=False, timeout=60)
    assert "to go on: marin run --backend inline counting.py --lr 5\n" in marin("status").err
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    said = f"to go on: cd {tmp_path} && marin run --backend inline counting.py --lr 5 --store {tmp_path}/.marin\n"
    assert said in marin("status", "--store", "../.marin").err


def test_next_command_of_a_submitted_run_leads_to_its_folder(marin, tmp_path):
    submitted(folder="/lab/my code", options=("--lr", "2"))
    stored().write_run("20261201-9", {"run": "20261201-9", "state": "failed", "steps": []})
    said = "to go on: cd '/lab/my code' && marin submit --address http://h:8265 counting.py --lr 2 --store "
    assert said in marin("status").err
