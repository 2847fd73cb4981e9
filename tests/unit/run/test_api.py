"""What the Python interface says to those who call it otherwise than meant."""

from pathlib import Path

import pytest

import marin
from marin import Records, pipeline
from marin.base.errors import ClusterError, ConfigurationError, StoreError
from marin.run import api
from marin.run.backends.inline import InlineBackend
from marin.store import Store, new_run_id


@pipeline
def small():
    return Records(texts=["a"])


@pytest.mark.parametrize("target", [small, "records", None, [], [Records(texts=["a"]), 3]])
@pytest.mark.parametrize("call", [marin.run, marin.plan, marin.load], ids=["run", "plan", "load"])
def test_api_of_no_step_is_a_configuration_error(tmp_path: Path, target: object, call: object):
    with pytest.raises(ConfigurationError, match="is no step"):
        call(target, store=tmp_path)  # type: ignore[operator]


def test_api_plans_one_step_or_several(tmp_path: Path):
    assert len(marin.plan(Records(texts=["a"]), store=tmp_path).steps) == 1
    assert len(marin.plan(small(), store=tmp_path).steps) == 1


def test_run_inside_a_worker_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MARIN_RUN", "20260101-000000-abcd")
    with pytest.raises(ConfigurationError, match="inside a worker") as caught:
        marin.run(Records(texts=["a"]), store=tmp_path)
    assert "__main__" in caught.value.hint


def test_load_before_a_run_says_how_to_make_it(tmp_path: Path):
    with pytest.raises(StoreError, match="no result of records yet"):
        marin.load(Records(texts=["a"]), store=tmp_path)


def test_run_ids_sort_by_time():
    ids = [new_run_id() for _ in range(3)]
    assert [name.rpartition("-")[0] for name in sorted(ids)] == [name.rpartition("-")[0] for name in ids]


def test_run_that_ends_as_a_whole_records_why(tmp_path):
    class Unreachable(InlineBackend):
        def start(self, code_folders, run) -> None:
            raise ClusterError("nothing answers", where="h:6379", hint="start it")

    planned = api.plan([Records(texts=["a"])], store=tmp_path)
    with pytest.raises(ClusterError):
        api.run_plan(planned, store=tmp_path, run="run-1", backend=Unreachable())
    record = Store.open(str(tmp_path), write=False).read_run("run-1")
    assert (record["state"], record["error"]["type"]) == ("failed", "ClusterError")
    assert (record["error"]["message"], record["error"]["hint"]) == ("nothing answers", "start it")
    assert [step["state"] for step in record["steps"]] == ["stopped"]
