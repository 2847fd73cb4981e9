"""Maps on a real Ray cluster: poison shards, memory, stops, and very many shards. One cluster for the module."""

import importlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import ray

from marin.run import api
from marin.run.backends.ray import RayBackend
from marin.run.result import RunResult
from marin.store import EventReader, ask_to_stop

MODULES = str(Path(__file__).parent / "modules")
LIMIT_SECONDS = 60


@pytest.fixture(scope="module")
def steps() -> ModuleType:
    return importlib.import_module("map_steps")


@pytest.fixture(scope="module")
def cluster(steps: ModuleType) -> Iterator[RayBackend]:
    backend = RayBackend(None, num_cpus=3)
    yield backend
    backend.close()


def _run(step, store: Path, cluster: RayBackend, run: str | None = None) -> RunResult:
    return api.run_plan(api.plan([step], store=store), store=store, backend=cluster, run=run)


def test_poison_shard_fails_in_two_processes_while_the_others_finish(steps, cluster, tmp_path):
    squares = steps.Squares(n=40, folder=str(tmp_path), unlucky=17)
    result = _run(squares, tmp_path / "store", cluster)
    failed = result.steps[0]
    assert failed.state == "failed"
    assert "1 of 40 shards failed (000017); first 000017: ValueError: 17 is unlucky" in failed.error["message"]
    tries = steps.calls(tmp_path, "000017")
    assert len({call["pid"] for call in tries}) == len(tries) == 2
    assert len(steps.calls(tmp_path, "0*")) == 41
    counts = [event for event in EventReader(result.store, result.run).poll() if event["kind"] == "shards"]
    assert counts[-1]["computed"] == 39
    (tmp_path / "mended").touch()
    again = _run(squares, tmp_path / "store", cluster).steps[0]
    assert (again.state, again.shards) == ("done", {"total": 40, "reused": 39, "computed": 1})
    assert len(steps.calls(tmp_path, "0*")) == 42


def test_memory_that_shards_ask_for_bounds_how_many_run_at_once(steps, cluster, tmp_path):
    cluster.start([MODULES], "warm")
    total = ray.cluster_resources()["memory"]
    squares = steps.Squares(n=16, folder=str(tmp_path), seconds=0.2).on(memory=f"{int(total / 2.5)} B")
    assert _run(squares, tmp_path / "store", cluster).state == "done"
    assert steps.most_at_once(steps.calls(tmp_path, "0*")) == 2


def test_stop_request_ends_the_map_after_the_shards_in_hand_without_another_try(steps, cluster, tmp_path):
    store = tmp_path / "store"
    squares = steps.Squares(n=150, folder=str(tmp_path), seconds=0.1)
    ended: list[RunResult] = []
    thread = threading.Thread(target=lambda: ended.append(_run(squares, store, cluster, run="asked")))
    thread.start()
    deadline = time.monotonic() + LIMIT_SECONDS
    while len(list(tmp_path.glob("0*"))) < 10:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    ask_to_stop(str(store), "asked", user="somebody")
    thread.join(LIMIT_SECONDS)
    done = len(list(tmp_path.glob("0*")))
    assert [result.state for result in ended] == ["stopped"]
    assert [(step.state, step.attempts) for step in ended[0].steps] == [("stopped", 1)]
    assert 10 <= done < 150
    assert not [event for event in EventReader(str(store), "asked").poll() if event.get("cause") == "worker lost"]
    again = _run(squares, store, cluster)
    assert again.steps[0].shards == {"total": 150, "reused": done, "computed": 150 - done}
    assert len(list(tmp_path.glob("0*"))) == 150


@pytest.mark.slow
def test_a_hundred_thousand_shards_leave_the_mapping_process_small(steps, cluster, tmp_path):
    counted = steps.Counted(n=100_000, folder=str(tmp_path))
    assert _run(counted, tmp_path / "store", cluster).state == "done"
    # Input, result and fingerprint of a shard take about 0.6 kB; what else grows with shards would show.
    assert int((tmp_path / "grown_kb").read_text()) < 150_000
