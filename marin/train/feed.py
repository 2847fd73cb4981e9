"""Batches of one rank, made one step ahead by a thread.

Invariant: what is made ahead never moves the cursor: a step's samples follow from its number alone. It knows the data
by a Protocol, so any source with numbered sequences will do.
"""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import NamedTuple, Protocol, Self, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from marin.model.cross_entropy import MASKED
from marin.train.order import audit_hash, samples, share
from marin.train.ramp import StepPlan


class SequenceSource(Protocol):
    """Numbered training sequences; `marin.data.loader.SequenceData` is one."""

    @property
    def digest(self) -> str:
        """Digest of all tokens."""

    def __len__(self) -> int: ...

    def batch(self, indices: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return int64 `(tokens, targets)` of shape `[B, T]`; a target of -100 does not count."""


class SegmentedBatch(Protocol):
    """What a source gives that was asked for documents as well."""

    @property
    def tokens(self) -> NDArray[np.int64]: ...

    @property
    def targets(self) -> NDArray[np.int64]: ...

    @property
    def segments(self) -> NDArray[np.int32] | None:
        """int32 `[B, T]`, equal within a document."""

    @property
    def positions(self) -> NDArray[np.int32] | None:
        """int32 `[B, T]`, from 0 in each document; None: counted from the segments."""


class SegmentedSource(SequenceSource, Protocol):
    """A source that knows where documents begin."""

    def batch(  # type: ignore[override]  # the same call with an option more
        self, indices: NDArray[np.int64], *, segments: bool
    ) -> SegmentedBatch: ...


class Batch(NamedTuple):
    """One rank's part of a step."""

    tokens: Tensor
    """int64 `[B, T]`, as `targets`."""
    targets: Tensor
    num_targets: int
    audit: int
    """Hash of the sample numbers; the sum over ranks is the step's."""
    segments: Tensor | None = None
    """int32 `[B, T]`, as `positions`, where documents are kept apart."""
    positions: Tensor | None = None
    samples: Tensor | None = None
    """int64 `[B]`: stream position of each row, for what is drawn at random in training."""

    def micro_batches(self, size: int | None, *, least: int = 1) -> "list[Batch]":
        """Return parts of at most `size` sequences, all at once for None.

        With fewer than `least` parts one sequence is given again without targets, which adds an exact 0.
        """
        starts = range(0, len(self.tokens), size or len(self.tokens))
        parts = [self._part(slice(start, start + (size or len(self.tokens)))) for start in starts]
        fillers = least - len(parts)
        return parts + [self._part(slice(0, 1)).without_targets() for _ in range(fillers)]

    def without_targets(self) -> "Batch":
        """Return the same sequences with no target that counts."""
        return self._replace(targets=torch.full_like(self.targets, MASKED), num_targets=0)

    def pinned(self) -> "Batch":
        """Return it in memory from which copies to a GPU need no wait."""
        return self._with(Tensor.pin_memory)

    def to(self, device: torch.device) -> "Batch":
        """Return it on a device; the host does not wait for the copy."""
        return self._with(lambda tensor: tensor.to(device, non_blocking=True))

    def _with(self, moved: Callable[[Tensor], Tensor]) -> "Batch":
        return self._replace(
            tokens=moved(self.tokens),
            targets=moved(self.targets),
            segments=None if self.segments is None else moved(self.segments),
            positions=None if self.positions is None else moved(self.positions),
            samples=None if self.samples is None else moved(self.samples),
        )

    def _part(self, rows: slice) -> "Batch":
        segments = None if self.segments is None else self.segments[rows]
        positions = None if self.positions is None else self.positions[rows]
        samples = None if self.samples is None else self.samples[rows]
        return Batch(self.tokens[rows], self.targets[rows], 0, 0, segments, positions, samples)


class Feed:
    """Iterates over one rank's batches from `first_step` on, one ahead."""

    def __init__(
        self,
        source: SequenceSource,
        *,
        plan: StepPlan,
        offset: int,
        seed: int,
        steps: range,
        rank: int,
        world_size: int,
        device: torch.device,
        documents: bool = False,
    ) -> None:
        """`offset`: stream position of step 0. `documents`: whether to ask the source for segments."""
        self._source = source
        self._plan = plan
        self._offset = offset
        self._documents = documents
        self._seed = seed
        self._steps = iter(steps)
        self._rank, self._world_size = rank, world_size
        self._device = device
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="feed")
        self._ahead = self._start_next()
        self.waited = 0.0
        """Seconds for which the loop has waited for batches so far."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Batch:
        if self._ahead is None:
            raise StopIteration
        began = time.perf_counter()
        ready, self._ahead = self._ahead.result(), self._start_next()
        self.waited += time.perf_counter() - began
        return ready.to(self._device)

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
        first, size = self._offset + self._plan.sequences(step), self._plan.batch(step)
        own = share(size, rank=self._rank, world_size=self._world_size)
        numbers = samples(first, first + size, num_sequences=len(self._source), seed=self._seed)[own]
        places = torch.arange(first, first + size)[own]
        batch = read_batch(self._source, numbers, self._documents)
        batch = batch._replace(audit=audit_hash(step, numbers), samples=places)
        return batch.pinned() if self._device.type == "cuda" else batch


def read_batch(source: SequenceSource, numbers: NDArray[np.int64], documents: bool) -> Batch:
    """Return the sequences with these numbers on the CPU, with segments where `documents` are kept apart; audit 0."""
    if not documents:
        tokens, targets = source.batch(numbers)[:2]
        return Batch(torch.from_numpy(tokens), torch.from_numpy(targets), _count(targets), 0)
    read = cast(SegmentedSource, source).batch(numbers, segments=True)
    assert read.segments is not None
    positions = None if read.positions is None else torch.from_numpy(read.positions)
    tensors = torch.from_numpy(read.tokens), torch.from_numpy(read.targets)
    return Batch(*tensors, _count(read.targets), 0, segments=torch.from_numpy(read.segments), positions=positions)


def _count(targets: NDArray[np.int64]) -> int:
    return int((targets != MASKED).sum())
