"""What checkpoints cost: how long training stands still for one, and how fast it is written and read.

    python benchmarks/checkpoint.py --megabytes 1024 --folder /var/tmp/checkpoints

The state is that of a model with AdamW: weights and two moments of the same size in fp32 matrices of `--width`. All
sides write the same bytes to the same folder and flush them to the disk; rounds alternate between them, and the medians
are shown. *memcpy* copies the same tensors into memory that is there already. marin verifies each byte that it reads,
torch none. The folder decides: a checkpoint is as fast as its disk.
"""

import argparse
import os
import shutil
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed import checkpoint as dcp

from marin.train.checkpoint import Checkpoints
from marin.train.saving import Saver

Tensors = dict[str, dict[str, Tensor]]


def make_state(megabytes: int, width: int) -> Tensors:
    """Return random weights, and moments of twice their size."""
    count = max(1, (megabytes << 20) // 3 // (4 * width * width))
    weights = {f"layers.{number}.weight": torch.randn(width, width) for number in range(count)}
    moments = {f"{name}.{moment}": torch.rand_like(tensor) for name, tensor in weights.items() for moment in "mv"}
    return {"model": weights, "optimizer": moments}


def flat(state: Tensors) -> dict[str, Tensor]:
    """Return all tensors by one name."""
    return {f"{stem}.{name}": tensor for stem, members in state.items() for name, tensor in members.items()}


def synced(path: Path) -> None:
    """Wait until a file, or all files of a folder, are on the disk."""
    for file in [path, *path.rglob("*")] if path.is_dir() else [path]:
        if file.is_file():
            descriptor = os.open(file, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)


class Sides:
    """The same state, copied, written and read by each side."""

    def __init__(self, folder: Path, state: Tensors) -> None:
        self.folder = folder
        self.state = state
        self.copies = {name: torch.empty_like(tensor) for name, tensor in flat(state).items()}
        self.step = 0
        self.checkpoints = Checkpoints(str(folder / "marin"))
        self.saver = Saver(self.checkpoints, generation=1, may_commit=lambda: True, alive=lambda phase: None)

    def memcpy(self) -> None:
        """Copy each tensor into memory that is there."""
        for name, tensor in flat(self.state).items():
            self.copies[name].copy_(tensor)

    def marin_stall(self) -> None:
        """Begin a checkpoint: what training waits for."""
        self.step += 1
        self.saver.save(step=self.step, tensors=self.state, state={"step": self.step}, score=None, at_once=False)

    def marin_write(self) -> None:
        """Write a checkpoint while nothing else is done."""
        self.step += 1
        self.saver.save(step=self.step, tensors=self.state, state={"step": self.step}, score=None, at_once=True)

    def marin_read(self) -> None:
        """Read the newest one, every byte verified."""
        assert self.checkpoints.newest() is not None

    def torch_write(self) -> None:
        """Write with torch.save."""
        torch.save(self.state, self.folder / "torch.pt")
        synced(self.folder / "torch.pt")

    def torch_read(self) -> None:
        """Read with torch.load."""
        torch.load(self.folder / "torch.pt", weights_only=True)

    def dcp_write(self) -> None:
        """Write with torch.distributed.checkpoint, in four threads."""
        shutil.rmtree(self.folder / "dcp", ignore_errors=True)
        writer = dcp.FileSystemWriter(self.folder / "dcp", thread_count=4)
        dcp.save(flat(self.state), storage_writer=writer, no_dist=True)
        synced(self.folder / "dcp")


def seconds(act: Callable[[], None]) -> tuple[float, float]:
    """Return how long a call takes, and how much of a core it takes meanwhile."""
    began, busy = time.perf_counter(), time.process_time()
    act()
    return time.perf_counter() - began, time.process_time() - busy


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--megabytes", type=int, default=1024, help="of the whole state")
    parser.add_argument("--width", type=int, default=1024, help="of each matrix")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path("/var/tmp/marin-checkpoints"))
    options = parser.parse_args()
    shutil.rmtree(options.folder, ignore_errors=True)
    options.folder.mkdir(parents=True)
    sides = Sides(options.folder, make_state(options.megabytes, options.width))
    size = sum(tensor.nbytes for tensor in flat(sides.state).values())
    sides.marin_stall()  # the first copies also take their memory
    sides.memcpy()
    found: dict[str, list[tuple[float, float]]] = {}
    with sides.saver:
        for _ in range(options.rounds):
            sides.saver.settle()
            for name in ("memcpy", "marin_stall", "settle", "marin_write", "torch_write", "dcp_write"):
                act = sides.saver.settle if name == "settle" else getattr(sides, name)
                found.setdefault(name, []).append(seconds(act))
            for name in ("marin_read", "torch_read"):
                found.setdefault(name, []).append(seconds(getattr(sides, name)))
    load = os.getloadavg()[0]
    print(f"{size / 2**20:,.0f} MiB in {len(flat(sides.state))} tensors, load average {load:.1f}")
    for name, times in found.items():
        walls, busy = zip(*times, strict=True)
        middle, cpu = statistics.median(walls), statistics.median(busy)
        spread = f"({min(walls):.3f} to {max(walls):.3f}), {cpu:.3f} s of CPU"
        print(f"{name:12} {middle:8.3f} s  {size / middle / 1e9:6.2f} GB/s  {spread}")
    ratios = [stall[0] / copy[0] for stall, copy in zip(found["marin_stall"], found["memcpy"], strict=True)]
    print(f"stall / memcpy: {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
    shutil.rmtree(options.folder)


if __name__ == "__main__":
    main()
