"""Records how a few steps spend their time, where `TrainConfig.profile` asks for it.

Invariant: it changes no bit of the run, only its pace, and that of the recorded steps alone.
"""

import logging
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

import torch
from torch import profiler

from marin import fs
from marin.train.profile import Profile

log = logging.getLogger(__name__)


class Profiler:
    """Begins before the first of the steps and writes after the last; the end of the run ends it too."""

    def __init__(self, asked: Profile | None, *, rank: int, device: torch.device) -> None:
        self._asked = asked if asked is not None and rank in asked.ranks else None
        self._rank, self._device = rank, device
        self._running: profiler.profile | None = None
        self._num_steps = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._write()

    def begin(self, step: int) -> None:
        """Say that a step begins."""
        if self._asked is None or self._running is not None or step != self._asked.first_step:
            return
        activities = [profiler.ProfilerActivity.CPU]
        if self._device.type == "cuda":
            activities.append(profiler.ProfilerActivity.CUDA)
            if self._asked.memory:
                torch.cuda.memory._record_memory_history()  # documented under this name
        self._running = profiler.profile(activities=activities, profile_memory=self._asked.memory)
        self._running.start()

    def end(self) -> None:
        """Say that the step is done."""
        if self._running is None or self._asked is None:
            return
        self._running.step()
        self._num_steps += 1
        if self._num_steps == self._asked.num_steps:
            self._write()

    def _write(self) -> None:
        if self._running is None or self._asked is None:
            return
        running, asked = self._running, self._asked
        self._running = self._asked = None
        running.stop()
        stem = f"steps-{asked.first_step:08d}-rank-{self._rank}"
        with tempfile.TemporaryDirectory(prefix="marin-profile-") as folder:
            trace = Path(folder, f"{stem}.trace.json")
            running.export_chrome_trace(str(trace))
            if asked.memory and self._device.type == "cuda":
                torch.cuda.memory._dump_snapshot(str(Path(folder, f"{stem}.memory.pickle")))  # type: ignore[no-untyped-call]
                torch.cuda.memory._record_memory_history(enabled=None)
            for path in sorted(Path(folder).iterdir()):
                fs.write(fs.join(asked.url, path.name), path.read_bytes())
        log.info("steps from %d on were recorded: %s/%s.trace.json", asked.first_step, asked.url, stem)
