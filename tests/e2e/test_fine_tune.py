"""Fine-tuning through the command line and embedded Ray, with a rank killed on the way; and the pipeline to copy."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import marin
from marin import Table
from marin.graph.pipeline import Pipeline
from marin.store import EventReader, Store

ROOT = Path(__file__).parents[2]
MODULES = Path(__file__).parent / "modules"
LIMIT_SECONDS = 300

sys.path[:0] = [str(ROOT / "pipelines"), str(MODULES)]
import fine_tune  # noqa: E402
import toy_tuning  # noqa: E402


@pytest.fixture
def start() -> Iterator[Callable[[Path], subprocess.Popen[str]]]:
    """Starts runs; what is left at the end is ended with all that it started."""
    started: list[subprocess.Popen[str]] = []

    def run(store: Path) -> subprocess.Popen[str]:
        target = str(MODULES / "toy_tuning.py")
        process = subprocess.Popen(
            [sys.executable, "-m", "marin", "run", target, "--store", str(store), "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def steps_of(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, err = process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == 0, out + err
    return {step["name"]: step for step in json.loads(out)["steps"]}


def wait_for_checkpoint(process: subprocess.Popen[str], store: Path, step: int) -> None:
    """Return once the tuned model has a checkpoint of that step or a later one."""
    deadline, pause = time.monotonic() + LIMIT_SECONDS, threading.Event()
    while True:
        found = store.glob("artifacts/fine-tune/*/checkpoints/step-*/MANIFEST.json")
        if any(int(path.parent.name[5:13]) >= step for path in found):
            return
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, f"no checkpoint within {LIMIT_SECONDS} s"
        pause.wait(0.02)


@pytest.mark.slow  # tests/unit/train has the parts: answers to the letter, and resuming from adapters alone
def test_adapters_whose_rank_was_killed_answer_to_the_letter_and_are_equal_to_the_bit(
    start: Callable[[Path], Any], tmp_path: Path
):
    undisturbed = steps_of(start(tmp_path / "undisturbed"))
    process = start(tmp_path / "store")
    wait_for_checkpoint(process, tmp_path / "store", 5)
    events = EventReader(str(tmp_path / "store"), Store.open(str(tmp_path / "store"), write=False).runs()[0]).poll()
    ranks = [event for event in events if event["kind"] == "placement" and event.get("name") == "tuned"]
    os.kill([event["pid"] for event in ranks if event.get("rank") == 0][-1], signal.SIGKILL)
    killed = steps_of(process)
    assert {name: step["digest"] for name, step in killed.items()} == {
        name: step["digest"] for name, step in undisturbed.items()
    }
    events = EventReader(str(tmp_path / "store"), Store.open(str(tmp_path / "store"), write=False).runs()[0]).poll()
    placed = [event for event in events if event["kind"] == "placement" and event.get("name") == "tuned"]
    generations = {event["generation"] for event in placed if "generation" in event}
    assert {1, 2} <= generations
    (answers,) = toy_tuning.toy_tuning.build()
    table = marin.load(answers, store=tmp_path / "store")
    assert isinstance(table, Table)
    assert [row["completion"].strip() for row in table.to_rows()] == list(toy_tuning.ANSWERS.values())


def test_pipeline_to_copy_can_be_planned(tmp_path: Path):
    (tmp_path / "a.py").write_text("a = 1\n")
    pipeline = fine_tune.fine_tune
    assert isinstance(pipeline, Pipeline)
    planned = marin.plan(pipeline.build(files=f"{tmp_path}/*.py"), store=tmp_path / "store")
    names = [step.name for step in planned.steps]
    assert {"base", "whole", "adapters", "ask/whole", "ask/adapters", "export"} <= set(names)
