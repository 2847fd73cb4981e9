"""Checkpoints written while training goes on: the state is copied to host memory, a thread writes the copy.

Invariants: a checkpoint holds the state of its step, whatever changes while it is written. One is in flight at a time;
the next one, and the end of the run, wait for it. A write that failed is raised at the next step, never passed over.
"""

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from types import TracebackType
from typing import Self

import psutil
import torch
from torch import Tensor

from marin.base.json import Json
from marin.base.units import format_size
from marin.train.checkpoint import Checkpoints

log = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0
_SHARE = 0.8  # of the host's free memory that the copy may take


class Saver:
    """Writes the checkpoints of one rank; a context manager that leaves nothing in flight."""

    def __init__(
        self,
        checkpoints: Checkpoints,
        *,
        generation: int,
        may_commit: Callable[[], bool],
        alive: Callable[[str], None],
        copy_bytes: int = 0,
    ) -> None:
        """`alive` is told how far a write is while somebody waits for it. `copy_bytes`: what a copy will take.

        Without room for a copy every checkpoint is written at once, while training waits.
        """
        self._checkpoints = checkpoints
        self._generation = generation
        self._may_commit = may_commit
        self._alive = alive
        self._copies: dict[tuple[str, str], Tensor] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._flying: Future[str] | None = None
        self._written = 0
        free = psutil.virtual_memory().available
        self._copies_fit = copy_bytes <= _SHARE * free
        if not self._copies_fit:
            log.warning(
                "checkpoints are written while training waits: a copy of %s has no room in %s of free memory",
                format_size(copy_bytes),
                format_size(free),
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        flying = self._flying
        if flying is not None:
            wait([flying])
            if failure := flying.exception():
                log.warning("the checkpoint in flight was not written: %s", failure)
        self._thread.shutdown()

    @property
    def is_busy(self) -> bool:
        """Whether a checkpoint is being written."""
        return self._flying is not None and not self._flying.done()

    def check(self) -> None:
        """Raise the failure of a write that has ended since it was asked last."""
        if self._flying is not None and self._flying.done():
            self.settle()

    def settle(self) -> None:
        """Wait until nothing is in flight; raises the failure of what was."""
        flying, self._flying = self._flying, None
        if flying is None:
            return
        while not wait([flying], timeout=_LOOK_SECONDS).done:
            self._alive(f"checkpoint {self._written}")
        flying.result()

    def save(
        self,
        *,
        step: int,
        tensors: Mapping[str, Mapping[str, Tensor]],
        state: Mapping[str, Json],
        score: float | None,
        at_once: bool,
    ) -> None:
        """Begin to write a checkpoint once the one before it is written; `at_once` waits for it.

        The tensors may change as soon as this returns. Raises what went wrong with the one before, and with
        `at_once` with this one.
        """
        self.settle()
        if self._copies_fit and not at_once:
            tensors = self._copied(tensors)

        def write() -> str:
            return self._checkpoints.save(
                step=step,
                generation=self._generation,
                tensors=tensors,
                state=state,
                may_commit=self._may_commit,
                score=score,
                told=self._note,
            )

        self._written = 0
        self._flying = self._thread.submit(write)
        if at_once or not self._copies_fit:
            self.settle()

    def _note(self, size: int) -> None:
        self._written += size

    def _copied(self, tensors: Mapping[str, Mapping[str, Tensor]]) -> dict[str, dict[str, Tensor]]:
        """Return copies in host memory, one tensor after the other; the memory of the last copies is used again."""
        copies: dict[str, dict[str, Tensor]] = {}
        devices = set()
        for stem, members in tensors.items():
            copies[stem] = {}
            for name, tensor in members.items():
                whole = tensor.detach()  # a divided state makes it now
                copy = self._copies.get((stem, name))
                on_device = whole.device.type == "cuda"
                if copy is None or copy.shape != whole.shape or copy.dtype != whole.dtype:
                    copy = torch.empty(whole.shape, dtype=whole.dtype, pin_memory=on_device)
                    self._copies[stem, name] = copy
                copies[stem][name] = copy.copy_(whole, non_blocking=on_device)
                if on_device:
                    devices.add(whole.device)
        for device in devices:
            torch.cuda.synchronize(device)
        return copies
