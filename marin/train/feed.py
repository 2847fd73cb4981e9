"""Batches of one rank, made one step ahead by a thread.

Invariant: what is made ahead never moves the cursor: a step's samples follow from its number alone. It knows the data
by a Protocol, so any source with numbered sequences will do.
"""

from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import NamedTuple, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from marin.model.cross_entropy import MASKED
from marin.train.order import audit_hash, samples, share


class SequenceSource(Protocol):
    """Numbered training sequences; `marin.data.loader.SequenceData` is one."""

    @property
    def digest(self) -> str:
        """Digest of all tokens."""

    def __len__(self) -> int: ...

    def batch(self, indices: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return int64 `(tokens, targets)` of shape `[B, T]`; a target of -100 does not count."""


class Batch(NamedTuple):
    """One rank's part of a step."""

    tokens: Tensor
    """int64 `[B, T]`, as `targets`."""
    targets: Tensor
    num_targets: int
    audit: int
    """Hash of the sample numbers; the sum over ranks is the step's."""


class Feed:
    """Iterates over one rank's batches from `first_step` on, one ahead."""

    def __init__(
        self,
        source: SequenceSource,
        *,
        batch: int,
        seed: int,
        steps: range,
        rank: int,
        world_size: int,
        device: torch.device,
    ) -> None:
        self._source = source
        self._batch = batch
        self._seed = seed
        self._steps = iter(steps)
        self._share = share(batch, rank=rank, world_size=world_size)
        self._device = device
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="feed")
        self._ahead = self._start_next()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Batch:
        if self._ahead is None:
            raise StopIteration
        ready, self._ahead = self._ahead.result(), self._start_next()
        return Batch(
            ready.tokens.to(self._device, non_blocking=True),
            ready.targets.to(self._device, non_blocking=True),
            ready.num_targets,
            ready.audit,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _start_next(self) -> "Future[Batch] | None":
        step = next(self._steps, None)
        return None if step is None else self._thread.submit(self._make, step)

    def _make(self, step: int) -> Batch:
        first = step * self._batch
        numbers = samples(first, first + self._batch, num_sequences=len(self._source), seed=self._seed)[self._share]
        tokens, targets = self._source.batch(numbers)
        return Batch(
            self._staged(tokens), self._staged(targets), int((targets != MASKED).sum()), audit_hash(step, numbers)
        )

    def _staged(self, array: NDArray[np.int64]) -> Tensor:
        tensor = torch.from_numpy(array)
        return tensor.pin_memory() if self._device.type == "cuda" else tensor
