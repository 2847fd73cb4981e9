"""A training that is evaluated on the way, killed in the middle: the same command continues, and nothing differs."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from marin import fs
from marin.store import EventReader, Store
from marin.testing import Point, Script

ROOT = Path(__file__).parents[2]
PIPELINE = str(ROOT / "pipelines" / "trajectory.py")
MODULES = Path(__file__).parent / "modules"
LIMIT_SECONDS = 150

Json = dict[str, Any]


def outputs(store: Path) -> dict[str, str]:
    """The digest of everything that was made."""
    found = {}
    for manifest in store.glob("artifacts/*/*/manifest.json"):
        record = json.loads(manifest.read_text())
        found[f"{record['step']}/{record['fingerprint']}"] = record["digest"]
    return found


def test_trajectory_killed_in_training_and_in_evaluation_gives_the_undisturbed_outputs(tmp_path: Path) -> None:
    path = f"{ROOT / 'pipelines'}:{os.environ.get('PYTHONPATH', '')}"
    imports = ["marin.train.entry", "marin.evaluate.loss", "marin.run.backends.inline"]
    with Script(MODULES / "kill_trajectory.py", imports=imports, env={"PYTHONPATH": path}) as script:
        whole, killed = tmp_path / "whole", tmp_path / "killed"
        assert not script.killed([str(whole)], Point("os.link", "*/nowhere/*"))
        points = [
            Point("os.link", "*/checkpoints/step-00000004.*/MANIFEST.json"),
            Point("os.link", "*/artifacts/evaluate/*/manifest.json", nth=2),
        ]
        for point in points:
            assert script.killed([str(killed)], point)
        (resumed,) = (killed / "artifacts" / "train").glob("*/checkpoints/generations")
        assert len(list(resumed.iterdir())) == 2
        assert not script.killed([str(killed)], Point("os.link", "*/nowhere/*"))
    assert outputs(killed) == outputs(whole)
    assert len([name for name in outputs(whole) if name.startswith(("at-step/", "evaluate/"))]) == 6


def command(store: Path) -> list[str]:
    files = f"{ROOT / 'marin'}/*/[a-l]*.py"
    small = ["--files", files, "--steps", "60", "--vocab-size", "300", "--context", "32", "--ranks", "2"]
    return [sys.executable, "-m", "marin", "run", PIPELINE, "--store", str(store), "--json", *small]


def wait_for(found: Any, process: subprocess.Popen[bytes], what: str) -> Any:
    deadline, pause = time.monotonic() + LIMIT_SECONDS, threading.Event()
    while not (value := found()):
        assert process.poll() is None, f"the run ended before {what}"
        assert time.monotonic() < deadline, f"no {what} within {LIMIT_SECONDS} s"
        pause.wait(0.05)
    return value


def events(store: Path, kind: str, name: str) -> list[Json]:
    runs = Store.open(str(store), write=False).runs()
    found = EventReader(str(store), runs[0]).poll() if runs else []
    return [event for event in found if event["kind"] == kind and event.get("name") == name]


@pytest.mark.slow  # the test above kills the same run where rank and driver are one process
def test_trajectory_whose_rank_and_driver_are_killed_gives_the_undisturbed_outputs(tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    subprocess.run(command(whole), check=True, timeout=LIMIT_SECONDS, capture_output=True)
    first = subprocess.Popen(command(killed), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        kept = f"{killed}/artifacts/train/*/checkpoints/step-*/MANIFEST.json"
        wait_for(lambda: fs.glob(kept)[1], first, "a checkpoint")
        ranks = [event for event in events(killed, "placement", "train") if event.get("rank") == 1]
        os.kill(ranks[-1]["pid"], signal.SIGKILL)
        wait_for(lambda: fs.glob(f"{killed}/artifacts/evaluate/*/manifest.json")[1], first, "a score")
    finally:
        first.kill()
        first.wait()
    subprocess.run(command(killed), check=True, timeout=LIMIT_SECONDS, capture_output=True)
    assert outputs(killed) == outputs(whole)
