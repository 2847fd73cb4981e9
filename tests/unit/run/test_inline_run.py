"""Running a plan in this process: hits, early cutoff, keep-going, shards, retries, logs."""

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

from marin import fs
from marin.base.errors import ConfigurationError, Interrupted, StepError, StoreError
from marin.graph.artifact import Folder, Value
from marin.graph.context import Context
from marin.graph.step import Step
from marin.run import api
from marin.run.result import RunResult
from marin.store import EventReader, Store

MODULES = str(Path(__file__).parents[2] / "e2e" / "modules")


@pytest.fixture(scope="module")
def steps() -> ModuleType:
    if MODULES not in sys.path:
        sys.path.insert(0, MODULES)
    return importlib.import_module("engine_steps")


class Parity(Step[Value[int]]):
    """Whether a number is odd: equal for many numbers, hence early cutoff."""

    number: int

    def run(self, ctx: Context) -> Value[int]:
        return Value.write(ctx.output, self.number % 2)


class Double(Step[Value[int]]):
    parity: Step[Value[int]]

    def run(self, ctx: Context) -> Value[int]:
        return Value.write(ctx.output, ctx.load(self.parity).value * 2)


class Wrong(Step[Folder]):
    """Returns what it does not declare."""

    def run(self, ctx: Context) -> Folder:
        return Value.write(ctx.output, 1)  # type: ignore[return-value]


class Endless(Step[Folder]):
    def run(self, ctx: Context) -> Folder:
        while True:
            pass


class Stopped(Step[Folder]):
    def run(self, ctx: Context) -> Folder:
        raise KeyboardInterrupt


class Printing(Step[Folder]):
    def run(self, ctx: Context) -> Folder:
        print("a line for the log")
        ctx.output.write("x", b"x")
        return Folder.write(ctx.output)


def _result(targets, store) -> RunResult:
    return api.run_plan(api.plan(targets, store=store), store=store, backend="inline")


def _states(result: RunResult) -> dict[str, str]:
    return {step.name: step.state for step in result.steps}


def _log(result: RunResult, name: str) -> str:
    folder = result.step(name).artifact or fs.join(result.store, "artifacts")
    return "".join(fs.read(entry.url).decode() for entry in fs.list_files(folder) if entry.path.endswith("log.txt"))


def test_run_two_steps_returns_the_artifact_and_hits_again(steps, tmp_path):
    total = steps.Total(squares=steps.Squares(n=10, folder=str(tmp_path)))
    store = tmp_path / "store"
    assert api.run(total, store=store, backend="inline").value == 285
    again = _result([total], store)
    assert _states(again) == {"squares": "cached", "total": "cached"}
    assert again.step("squares").metrics == {"largest": 81}
    assert api.load(total, store=store).value == 285


def test_run_several_targets_returns_them_in_order(tmp_path):
    artifacts = api.run([Parity(number=3), Parity(number=4), Parity(number=3)], store=tmp_path, backend="inline")
    assert [artifact.value for artifact in artifacts] == [1, 0, 1]


def test_run_equal_parent_bytes_stop_the_change_there(tmp_path):
    _result([Double(parity=Parity(number=3))], tmp_path)
    assert _states(_result([Double(parity=Parity(number=5))], tmp_path)) == {"parity": "done", "double": "cached"}


def test_run_artifact_files_gone_is_a_miss(tmp_path):
    first = _result([Parity(number=3)], tmp_path)
    for file in Path(first.step("parity").artifact).rglob("value.json"):
        file.unlink()
    assert _states(_result([Parity(number=3)], tmp_path)) == {"parity": "done"}
    assert api.load(Parity(number=3), store=tmp_path).value == 1


def test_run_one_branch_fails_others_finish_and_dependents_are_blocked(steps, tmp_path):
    fails = steps.Fails()
    result = _result([steps.Uses(parent=steps.Uses(parent=fails)), Parity(number=1)], tmp_path)
    assert _states(result) == {"fails": "failed", "uses": "blocked", "uses-2": "blocked", "parity": "done"}
    assert result.state == "failed"
    error = result.step("fails").error
    assert error["message"] == "RuntimeError: no luck"
    assert error["where"].endswith("in deep")
    assert "engine_steps.py" in error["where"]
    with pytest.raises(StepError, match="step fails failed: RuntimeError: no luck"):
        api.run(fails, store=tmp_path, backend="inline")


def test_run_failure_log_shows_user_frames_and_folds_the_engine(steps, tmp_path):
    log = _log(_result([steps.Fails()], tmp_path), "fails")
    assert "in deep" in log.splitlines()[1]
    assert "framework frames" in log
    assert "marin/run/attempt.py" not in log.replace("last marin/run/attempt.py", "")


def test_run_prints_go_to_the_log_and_to_the_terminal(tmp_path, capsys):
    result = _result([Printing()], tmp_path)
    assert "a line for the log" in _log(result, "printing")
    assert "a line for the log" in capsys.readouterr().out


def test_run_wrong_artifact_type_says_what_was_declared(tmp_path):
    error = _result([Wrong()], tmp_path).step("wrong").error
    assert "returned Value, and declares Folder" in error["message"]


def test_run_step_over_its_timeout_fails_without_retry(tmp_path):
    step = _result([Endless().on(timeout=0.3)], tmp_path).step("endless")
    assert (step.state, step.attempts, step.error["type"]) == ("failed", 1, "StepTimeout")


def test_run_interrupted_stops_and_releases_the_lease(tmp_path):
    result = _result([Stopped(), Parity(number=1)], tmp_path)
    assert result.state == "stopped"
    assert set(_states(result).values()) == {"stopped"}
    leases = [entry.path.rsplit("/", 1)[-1] for entry in fs.list_files(str(tmp_path)) if "/leases/" in entry.path]
    assert sorted(leases) == ["1.json", "1.released.json"]
    with pytest.raises(Interrupted):
        api.run(Stopped(), store=tmp_path, backend="inline")


def test_map_resumes_with_the_shards_that_are_there(steps, tmp_path):
    store = tmp_path / "store"
    _result([steps.Squares(n=8, folder=str(tmp_path))], store)
    more = _result([steps.Squares(n=11, folder=str(tmp_path))], store)
    assert more.step("squares").shards == {"total": 11, "reused": 8, "computed": 3}
    assert steps.counted(tmp_path, "0003") == 1


def test_map_poison_shard_is_tried_twice_and_named_while_others_finish(steps, tmp_path):
    result = _result([steps.Squares(n=6, folder=str(tmp_path), trouble="raise:2")], tmp_path / "store")
    error = result.step("squares").error
    assert "1 of 6 shards failed (0002)" in error["message"]
    assert "ValueError: 2 is unlucky" in error["message"]
    assert "engine_steps.py" in error["where"]
    assert [steps.counted(tmp_path, f"{i:04d}") for i in range(6)] == [1, 1, 2, 1, 1, 1]


def test_map_of_a_lambda_is_refused_with_the_mend(tmp_path):
    error = _result([Lambda()], tmp_path).step("lambda").error
    assert error["type"] in ("ConfigurationError", "CanonicalError")
    assert "module" in error["hint"]


class Lambda(Step[Folder]):
    def run(self, ctx: Context) -> Folder:
        ctx.map(lambda shard: 1, ())
        return Folder.write(ctx.output)


def test_gang_of_one_runs_in_this_process(steps, tmp_path):
    store = tmp_path / "store"
    (seat,) = api.run(steps.Gang(folder=str(tmp_path)), store=store, backend="inline").value
    assert seat[:2] == [0, True]
    assert seat[2]["WORLD_SIZE"] == "1"
    with pytest.raises(ConfigurationError, match="2 ranks"):
        _result([steps.Gang(folder=str(tmp_path)).on(ranks=2)], tmp_path / "other")


def test_gang_user_exception_is_final_and_names_the_frame(steps, tmp_path):
    step = _result([steps.Gang(folder=str(tmp_path), raises=0)], tmp_path / "store").step("gang")
    assert step.error["message"] == "ValueError: rank 0 does not like this"
    assert "engine_steps.py" in step.error["where"]
    assert steps.counted(tmp_path, "generation-1-rank-0") == 1


def test_load_missing_result_says_how_to_make_it(tmp_path):
    with pytest.raises(StoreError, match="no result of parity"):
        api.load(Parity(number=1), store=tmp_path)
    assert not list(tmp_path.iterdir())


def test_run_record_and_events_tell_the_states(tmp_path):
    result = _result([Double(parity=Parity(number=3))], tmp_path)
    record = Store.open(str(tmp_path), write=False).read_run(result.run)
    assert record["state"] == "done"
    assert [step["state"] for step in record["steps"]] == ["done", "done"]
    events = EventReader(result.store, result.run).poll()
    states = [(event["name"], event["state"]) for event in events if event["kind"] == "state"]
    assert states == [("parity", "running"), ("parity", "done"), ("double", "running"), ("double", "done")]
    assert {event["kind"] for event in events} >= {"run", "state", "placement"}
