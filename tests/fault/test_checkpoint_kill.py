"""SIGKILL at every system call of a save on a local disk: the checkpoint before it or the new one is there, whole."""

import os
from pathlib import Path

import torch

from marin.testing import Point, Script
from marin.train.checkpoint import Checkpoints

SCRIPT = Path(__file__).parent / "modules" / "save_checkpoints.py"


def test_save_killed_at_any_event_loses_nothing_that_was_committed(tmp_path: Path) -> None:
    with Script(SCRIPT, imports=["torch", "marin.train.checkpoint"], env=dict(os.environ)) as script:
        traced = script.traced([str(tmp_path / "traced")])
        events = [event for event in traced if any("/step-" in path for path in event[1:])]
        assert len(events) > 10
        for nth in range(1, len(events) + 1):
            folder = tmp_path / f"{nth}"
            killed = script.killed([str(folder)], Point(path="*/step-*", nth=nth))
            assert killed or nth == len(events)
            checkpoints = Checkpoints(str(folder))
            newest = checkpoints.newest()
            assert newest is not None
            assert newest.step in (2, 3)
            assert newest.tensors["model"]["w"].tolist() == [newest.step] * 3
            for step in (4, 5):
                checkpoints.save(
                    step=step,
                    generation=2,
                    tensors={"model": {"w": torch.full((3,), float(step))}},
                    state={"step": step},
                    may_commit=lambda: True,
                )
            assert sorted(int(path.name[5:13]) for path in folder.iterdir()) == [4, 5]
