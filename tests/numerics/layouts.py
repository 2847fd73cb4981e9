"""Ranks as processes, for tests: `python layouts.py FOLDER` runs the jobs in FOLDER/jobs.json, one after the other.

A job is `{"name", "config", "world_size", "continues"}`; the data are fifty random rows with documents in them. Its
ranks are forked from one process that has imported torch, so that starting them costs little. With `continues`,
`[job, step]`, it finds what that job's checkpoints were at that step, as if it had been killed then.
"""

import json
import os
import shutil
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed.tensor.parallel

from marin import fs
from marin.train.config import TrainConfig
from marin.train.entry import open_rendezvous, train_source
from marin.train.launched import LaunchedMember


class Rows(NamedTuple):
    tokens: np.ndarray
    targets: np.ndarray
    segments: np.ndarray | None
    positions: np.ndarray | None


class RandomRows:
    """Fifty rows; each token that five divides begins a document, some targets are masked."""

    digest = "rows"
    rows = np.random.default_rng(0).integers(0, 50, (50, 17))

    def __len__(self) -> int:
        return len(self.rows)

    def batch(self, indices: np.ndarray, *, segments: bool = False) -> Rows:
        tokens, targets = self.rows[indices][:, :-1].copy(), self.rows[indices][:, 1:].copy()
        targets[indices % 7 == 3, 5:] = -100
        ids = np.cumsum(tokens % 5 == 0, axis=1, dtype=np.int32) if segments else None
        return Rows(tokens, targets, ids, None)


def train(folder: Path, job: dict[str, object], rank: int, port: int, hosted: object) -> None:
    member = LaunchedMember(
        rank=rank,
        world_size=job["world_size"],
        local_rank=rank,
        rendezvous=f"127.0.0.1:{port}",
        hosted=hosted,
    )
    train_source(
        member,
        config=TrainConfig.model_validate_json(json.dumps(job["config"])),
        source=RandomRows(),
        checkpoints=str(checkpoints_of(folder, job["name"])),
        output=fs.FolderOutput(str(folder / job["name"])),
    )


def checkpoints_of(folder: Path, name: str) -> Path:
    return folder / f"{name}.checkpoints"


def continue_from(folder: Path, job: dict[str, object]) -> None:
    other, step = job["continues"]
    for found in checkpoints_of(folder, other).iterdir():
        if int(found.name[5:13]) <= step:
            shutil.copytree(found, checkpoints_of(folder, job["name"]) / found.name)


def forked(work: Callable[[], None]) -> int:
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        work()
        code = 0
    finally:
        if code:
            traceback.print_exc()
        os._exit(code)


def run(folder: Path, job: dict[str, object]) -> int:
    """Run a job and return the worst exit code of its ranks."""
    if job["continues"]:
        continue_from(folder, job)
    read, write = os.pipe()

    def first() -> None:
        hosted = open_rendezvous()
        port = hosted.address.rpartition(":")[2]
        os.write(write, port.encode())
        train(folder, job, 0, int(port), hosted)

    children = [forked(first)]
    os.close(write)
    port = int(os.read(read, 16))
    os.close(read)
    children += [forked(lambda rank=rank: train(folder, job, rank, port, None)) for rank in range(1, job["world_size"])]
    return max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)


if __name__ == "__main__":
    torch.set_num_threads(1)
    place = Path(sys.argv[1])
    for each in json.loads((place / "jobs.json").read_text()):
        if run(place, each):
            sys.exit(f"job {each['name']} failed")
