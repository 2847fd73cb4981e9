"""The engine on a real embedded Ray: one cluster for the module; what kills it is in test_engine_kill.py."""

import importlib
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from types import ModuleType

import psutil
import pytest

from marin.base.errors import ClusterError, ConfigurationError
from marin.run import api
from marin.run.backend import Backend
from marin.run.result import RunResult
from marin.store import EventReader

MODULES = str(Path(__file__).parent / "modules")


@pytest.fixture(scope="module")
def steps() -> ModuleType:
    if MODULES not in sys.path:
        sys.path.insert(0, MODULES)
    return importlib.import_module("engine_steps")


@pytest.fixture(scope="module")
def cluster(steps: ModuleType) -> Iterator[Backend]:
    backend = api.open_backend("ray", None)
    yield backend
    backend.close()


def _run(targets, store, cluster) -> RunResult:
    return api.run_plan(api.plan(targets, store=store), store=store, backend=cluster)


def _events(result: RunResult, kind: str) -> list[dict]:
    return [event for event in EventReader(result.store, result.run).poll() if event["kind"] == kind]


def test_ray_two_steps_agree_with_inline_in_every_digest(steps, cluster, tmp_path):
    total = steps.Total(squares=steps.Squares(n=100, folder=str(tmp_path)))
    inline = api.run_plan(api.plan([total], store=tmp_path / "a"), store=tmp_path / "a", backend="inline")
    ray = _run([total], tmp_path / "b", cluster)
    assert [(step.state, step.digest) for step in ray.steps] == [("done", step.digest) for step in inline.steps]
    assert ray.step("squares").shards == {"total": 100, "reused": 0, "computed": 100}
    places = {event["pid"] for event in _events(ray, "placement")}
    assert os.getpid() not in places
    again = _run([total], tmp_path / "b", cluster)
    assert {step.state for step in again.steps} == {"cached"}


def test_ray_private_cluster_starts_none_of_the_processes_that_no_run_uses(steps, cluster, tmp_path):
    _run([steps.Squares(n=1, folder=str(tmp_path))], tmp_path / "store", cluster)
    started = {Path(word).name for process in psutil.Process().children() for word in process.cmdline()}
    assert {"gcs_server", "raylet"} <= started
    assert started.isdisjoint({"monitor.py", "log_monitor.py", "dashboard.py"})


def test_ray_workers_read_from_other_stores_and_copy_what_a_new_artifact_names(steps, cluster, tmp_path):
    team, own = tmp_path / "team", tmp_path / "own"
    few, more = (steps.Squares(n=n, folder=str(tmp_path)) for n in (5, 8))
    api.run_plan(api.plan([few], store=team), store=team, backend="inline")
    wanted = [steps.Total(squares=few), steps.Total(squares=more)]
    planned = api.plan(wanted, store=own, read_from=[str(team)])
    result = api.run_plan(planned, store=own, backend=cluster, read_from=[str(team)])
    assert [step.state for step in result.steps] == ["cached", "done", "done", "done"]
    assert result.step("squares-2").shards == {"total": 8, "reused": 5, "computed": 3}
    alone = api.run_plan(api.plan([more], store=own), store=own, backend="inline")
    assert alone.step("squares").state == "cached"


def test_ray_worker_killed_in_a_map_repeats_one_shard_only(steps, cluster, tmp_path):
    squares = steps.Squares(n=30, folder=str(tmp_path), trouble="die-once:17")
    result = _run([squares], tmp_path / "store", cluster)
    assert result.state == "done"
    assert (steps.counted(tmp_path, "0017"), result.steps[0].attempts) == (2, 1)
    assert sum(steps.counted(tmp_path, f"{i:04d}") for i in range(30)) == 31
    causes = [event["cause"] for event in _events(result, "exit")]
    assert causes == ["worker lost"]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_ray_step_worker_killed_is_tried_again(steps, cluster, tmp_path, number):
    (tmp_path / "gate").touch()
    result = _run([steps.Waits(folder=str(tmp_path), dies=number)], tmp_path / "store", cluster)
    assert (result.state, result.steps[0].attempts) == ("done", 2)
    assert [event["cause"] for event in _events(result, "exit")] == ["worker lost"]


def test_ray_branch_fails_with_the_users_frame_and_others_finish(steps, cluster, tmp_path):
    fails = steps.Fails()
    result = _run([steps.Uses(parent=fails), steps.Squares(n=3, folder=str(tmp_path))], tmp_path / "s", cluster)
    assert {step.name: step.state for step in result.steps} == {
        "fails": "failed",
        "uses": "blocked",
        "squares": "done",
    }
    error = result.step("fails").error
    assert error["message"] == "RuntimeError: no luck"
    assert error["where"].startswith("engine_steps.py:")
    assert error["where"].endswith("in deep")


def test_ray_shard_exception_names_the_shard(steps, cluster, tmp_path):
    result = _run([steps.Squares(n=5, folder=str(tmp_path), trouble="raise:3")], tmp_path / "store", cluster)
    error = result.step("squares").error
    assert "1 of 5 shards failed (0003)" in error["message"]
    assert error["where"].startswith("engine_steps.py:")


@pytest.mark.parametrize(("trouble", "words"), [("interrupt", "KeyboardInterrupt"), ("exit", "SystemExit: 3")])
def test_ray_step_or_shard_that_raises_what_ends_a_process_has_failed(steps, cluster, tmp_path, trouble, words):
    wanted = [steps.Squares(n=5, folder=str(tmp_path), trouble=f"{trouble}:3"), steps.Ends(how=trouble)]
    result = _run(wanted, tmp_path / "store", cluster)
    assert result.state == "failed"
    assert f"1 of 5 shards failed (0003); first 0003: {words}" in result.step("squares").error["message"]
    assert result.step("ends").error["message"].startswith(words)


def test_ray_independent_maps_share_two_cpus_without_deadlock(steps, cluster, tmp_path):
    many = [steps.Squares(n=n, folder=str(tmp_path)) for n in range(20, 26)]
    assert _run(many, tmp_path / "store", cluster).state == "done"


def test_ray_seconds_of_a_step_leave_out_what_it_waited_for_a_place(steps, cluster, tmp_path):
    """No two of these run at once, so together they cannot have run longer than from first start to last end."""
    result = _run([steps.Naps(number=number).on(cpus=2) for number in range(8)], tmp_path / "store", cluster)
    moments = [datetime.fromisoformat(event["time"]) for event in _events(result, "state")]
    assert all(step.seconds >= 0.3 for step in result.steps)
    assert sum(step.seconds for step in result.steps) <= (max(moments) - min(moments)).total_seconds()


def test_ray_gang_hands_out_the_torchrun_environment(steps, cluster, tmp_path):
    seats = api.run(steps.Gang(folder=str(tmp_path)).on(ranks=2), store=tmp_path / "store", backend=cluster).value
    assert [seat[:2] for seat in seats] == [[0, True], [1, True]]
    assert [seat[2] for seat in seats] == [
        {
            "RANK": str(rank),
            "WORLD_SIZE": "2",
            "LOCAL_RANK": str(rank),
            "NODE_RANK": "0",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "1",
            "OMP_NUM_THREADS": "1",
        }
        for rank in range(2)
    ]


def test_ray_gang_of_one_uses_all_its_cpus(steps, cluster, tmp_path):
    (seat,) = api.run(steps.Gang(folder=str(tmp_path)).on(cpus=2), store=tmp_path / "store", backend=cluster).value
    assert seat[2]["OMP_NUM_THREADS"] == "2"


def test_ray_gang_whose_attempt_is_killed_gives_its_place_back(steps, cluster, tmp_path):
    """Its ranks held every CPU: the next attempt could not form a gang beside what the lost one had reserved."""
    result = _run([steps.Orphans(folder=str(tmp_path)).on(ranks=2)], tmp_path / "store", cluster)
    assert (result.state, result.steps[0].attempts) == ("done", 2)


def test_ray_gang_rank_killed_is_formed_again(steps, cluster, tmp_path):
    gang = steps.Gang(folder=str(tmp_path), victim=1).on(ranks=2)
    started = time.monotonic()
    result = _run([gang], tmp_path / "store", cluster)
    assert result.state == "done"
    assert time.monotonic() - started < 30
    counts = [steps.counted(tmp_path, f"generation-{g}-rank-{r}") for g in (1, 2) for r in (0, 1)]
    assert counts == [1, 1, 1, 1]
    exits = [(event["cause"], event["generation"]) for event in _events(result, "exit")]
    assert exits == [("worker lost", 1)]
    ranks = {(e["rank"], e["generation"]) for e in _events(result, "placement") if "rank" in e}
    assert ranks == {(0, 1), (1, 1), (0, 2), (1, 2)}


def test_ray_gang_user_exception_is_final(steps, cluster, tmp_path):
    result = _run([steps.Gang(folder=str(tmp_path), raises=1).on(ranks=2)], tmp_path / "store", cluster)
    error = result.step("gang").error
    assert error["message"] == "ValueError: rank 1 does not like this"
    assert error["where"].startswith("engine_steps.py:")
    assert steps.counted(tmp_path, "generation-2-rank-0") == 0


def test_ray_timeout_ends_a_step(steps, cluster, tmp_path):
    result = _run([steps.Waits(folder=str(tmp_path)).on(timeout=1)], tmp_path / "store", cluster)
    step = result.steps[0]
    assert (step.state, step.attempts, step.error["type"]) == ("failed", 1, "StepTimeout")


def test_ray_request_no_node_can_satisfy_fails_at_once(steps, cluster, tmp_path):
    started = time.monotonic()
    with pytest.raises(ClusterError, match="asks for 4000 CPUs; the cluster can never give that: it has 1 node"):
        _run([steps.Waits(folder=str(tmp_path)).on(cpus=4000)], tmp_path / "store", cluster)
    assert time.monotonic() - started < 10


def test_ray_step_of_main_is_refused(steps, cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(steps.Fails, "__module__", "__main__")
    with pytest.raises((ConfigurationError, ImportError)):
        _run([steps.Fails(text="main")], tmp_path / "store", cluster)


def test_probe_dead_or_silly_address_fails_with_a_hint():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    probe = importlib.import_module("marin.run.backends.ray_connect").probe
    with pytest.raises(ClusterError, match="nothing answers"):
        probe(f"127.0.0.1:{port}")
    with pytest.raises(ConfigurationError, match="no address"):
        probe("somewhere")
