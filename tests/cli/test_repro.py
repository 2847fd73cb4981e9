"""`marin repro`: the folder from the command line, its check, and what it says when things are not as they were."""

import json
from pathlib import Path

import pytest

TRANSIENT = '''
import os
import pathlib

from marin import Context, Files, Step, Value, pipeline


class Noise(Step[Value[str]]):
    def run(self, ctx: Context) -> Value[str]:
        return Value.write(ctx.output, os.urandom(4).hex())


class Length(Step[Value[int]]):
    noise: Step[Value[str]]

    def run(self, ctx: Context) -> Value[int]:
        return Value.write(ctx.output, len(ctx.load(self.noise).value))


class Reads(Step[Value[str]]):
    """Reads a file that nobody pins, by a relative path."""

    def run(self, ctx: Context) -> Value[str]:
        return Value.write(ctx.output, pathlib.Path("notes.txt").read_text())


@pipeline
def noisy():
    return [Length(noise=Noise()), Reads()]


@pipeline
def reading():
    return [Files(url="corpus/*.txt")]
'''


@pytest.fixture
def transient(project: Path, tmp_path: Path) -> Path:
    (project / "transient.py").write_text(TRANSIENT)
    (project / "notes.txt").write_text("note")
    (project / "corpus").mkdir(exist_ok=True)
    (project / "corpus" / "a.txt").write_text("text")
    return tmp_path / "out"


def test_repro_check_makes_the_whole_lineage_again(marin, ran, tmp_path):
    done = marin("repro", "score", "-o", str(tmp_path / "out"), "--check", "--backend", "inline", "--json")
    assert done.code == 0, done.err
    record = done.json
    assert (record["reproduced"], record["pipeline"]) == (True, "pipeline.py")
    assert record["folder"] == str(tmp_path / "out")
    by_name = {step["name"]: step for step in ran.json["steps"]}
    assert record["artifact"] == by_name["score"]["artifact"]
    assert record["digest"] == by_name["score"]["digest"]
    assert [(step["name"], step["equal"]) for step in record["steps"]] == [
        ("numbers", True),
        ("learn/small", True),
        ("score", True),
    ]
    assert [step["digest"] for step in record["steps"]] == [by_name[step["name"]]["digest"] for step in record["steps"]]


def test_repro_without_check_runs_nothing(marin, ran, project, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = marin("repro", "score", "--json")
    assert done.code == 0
    assert "reproduced" not in done.json
    folder = Path(done.json["folder"])
    assert folder == tmp_path / f"repro-score-{done.json['steps'][-1]['fingerprint'][:8]}"
    assert not (folder / "store").exists()
    assert "class Learn(Step[Folder]):" in (folder / "code" / "counting.py").read_text()
    assert marin("repro", "score").out == f"{folder.name}: 3 steps in pipeline.py\n"


def test_repro_of_a_step_that_is_not_deterministic_exits_1_and_names_it(marin, transient):
    marin("run", "transient.py:noisy", "--backend", "inline")
    done = marin("repro", "noise", "-o", str(transient), "--check", "--backend", "inline")
    assert done.code == 1
    assert "different: noise was " in done.out
    assert "from the same recipe" in done.out


def test_repro_equal_behind_a_step_that_differs_names_both(marin, transient):
    marin("run", "transient.py:noisy", "--backend", "inline")
    done = marin("repro", "length", "-o", str(transient), "--check", "--backend", "inline")
    assert done.code == 0
    assert "equal: length came out the same" in done.out
    assert "different on the way: noise was " in done.out


def test_repro_check_runs_where_it_was_run_and_tells_why_it_fails(marin, transient, project, tmp_path, monkeypatch):
    marin("run", "transient.py:noisy", "--backend", "inline")
    monkeypatch.chdir(tmp_path)
    assert marin("repro", "reads", "-o", str(transient), "--check", "--backend", "inline").code == 0
    (project / "notes.txt").unlink()
    failed = marin("repro", "reads", "-o", str(tmp_path / "other"), "--check", "--backend", "inline")
    assert failed.code == 1
    assert "the rerun failed: FileNotFoundError" in failed.err


def test_repro_check_of_changed_inputs_exits_2_before_anything_runs(marin, transient, project):
    marin("run", "transient.py:reading", "--backend", "inline")
    (project / "corpus" / "a.txt").write_text("another text")
    done = marin("repro", "files", "-o", str(transient), "--check", "--backend", "inline")
    assert done.code == 2
    assert "a.txt (changed)" in done.err
    assert (transient / "pins.json").exists()
    assert not (transient / "store").exists()


def test_repro_of_what_lies_upstream_and_of_nothing(marin, ran, tmp_path, monkeypatch):
    team = ran.json["store"]
    own = str(tmp_path / "own")
    assert marin("run", "several.py:one", "--store", own, "--backend", "inline").code == 0
    missing = marin("repro", "score", "--store", own, "-o", str(tmp_path / "out"))
    assert (missing.code, "nothing called 'score'" in missing.err) == (2, True)
    done = marin("repro", "score", "--store", own, "--read-from", team, "-o", str(tmp_path / "out"), "--json")
    assert done.json["artifact"].startswith(f"{team}/artifacts/score/")
    assert json.loads((tmp_path / "out" / "recipe.json").read_text())["steps"][0]["recipe"]["step"] == "numbers"
    assert marin("repro", "score", "--store", str(tmp_path / "none")).code == 3
