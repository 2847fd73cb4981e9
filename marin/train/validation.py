"""Loss on held-out sequences while a model trains: a look that changes no bit of the run.

Invariant: it draws no random numbers, touches no gradient and no cursor, so weights and record are the same with it and
without. Sums are fp64 over fp32 losses, added over ranks, so ranks and micro-batches change a figure by rounding only.
"""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from marin.model.cross_entropy import MASKED
from marin.model.decoder import LanguageModel
from marin.train.feed import Batch, SequenceSource, read_batch
from marin.train.order import share
from marin.train.ranks import Ranks


class HeldOut(NamedTuple):
    """What is looked at."""

    source: SequenceSource
    token_sizes: NDArray[np.int64] | None
    """Bytes of text of each token id, 0 for special tokens (`marin.data.token_sizes`); None: no bits per byte."""


class Validation:
    """The first `sequences` of held-out data, shared evenly among the ranks."""

    def __init__(self, held_out: HeldOut, *, sequences: int, documents: bool, device: torch.device) -> None:
        self._source = held_out.source
        self._num = min(sequences, len(held_out.source))
        self._documents = documents
        self._device = device
        sizes = held_out.token_sizes
        self._bytes_V = None if sizes is None else torch.from_numpy(sizes).to(device)

    @torch.no_grad()
    def losses(
        self, model: LanguageModel, ranks: Ranks, *, micro_batch: int, alive: Callable[[], None]
    ) -> dict[str, float]:
        """Return `val_loss` in nats a target, and `val_bits_per_byte` where the bytes of tokens are known.

        Bits per byte leave out special tokens, as they stand for no text. Every rank must call; `alive` is called
        before each of a rank's micro-batches.
        """
        sums = torch.zeros(4, dtype=torch.float64, device=self._device)
        for batch in self._batches(ranks, micro_batch):
            alive()
            losses_BT = model.token_losses(batch.tokens, batch.targets, batch.segments, batch.positions).double()
            sums += self._sums(losses_BT, batch.targets)
        if not ranks.layout.leads:  # tensor ranks read the same sequences
            sums.zero_()
        ranks.add(sums)
        nats, targets, text_nats, text_bytes = sums.tolist()
        found = {"val_loss": nats / targets} if targets else {}
        return {**found, "val_bits_per_byte": text_nats / math.log(2) / text_bytes} if text_bytes else found

    def _sums(self, losses_BT: Tensor, targets_BT: Tensor) -> Tensor:
        """Return fp64 `[4]`: nats and number of all targets, nats and bytes of those that stand for text."""
        counted = targets_BT != MASKED
        if self._bytes_V is None:
            sizes_BT = torch.zeros_like(targets_BT)
        else:
            sizes_BT = self._bytes_V[targets_BT.where(counted, 0)] * counted
        parts = (losses_BT, counted, losses_BT * (sizes_BT > 0), sizes_BT)
        return torch.stack([part.sum(dtype=torch.float64) for part in parts])

    def _batches(self, ranks: Ranks, micro_batch: int) -> Iterator[Batch]:
        """Yield equally many batches on every rank, as a divided model computes on all of them or none."""
        layout = ranks.layout
        own = np.arange(self._num)[share(self._num, rank=layout.data_rank, world_size=layout.data_ranks)]
        most = -(-self._num // layout.data_ranks)
        for start in range(0, most if layout.divides else len(own), micro_batch):
            numbers = own[start : start + micro_batch]
            batch = read_batch(self._source, numbers if len(numbers) else np.arange(1), self._documents)
            yield (batch if len(numbers) else batch.without_targets()).to(self._device)
