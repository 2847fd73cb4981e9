"""Batches of training rows from the shards of Sequences.

Invariant: sequence i is the same row for every world size, thread and process; every token but the stream's first is
a target exactly once over all sequences. Local files are memory-mapped; remote ones are read by cached ranges.
"""

import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from marin.base.errors import DataError
from marin.data.arrays import open_array
from marin.data.token_files import TOKENS
from marin.graph.files import Shard

IGNORED = -100
"""Target of a position that has none; torch's cross entropy leaves it out."""


class Batch(NamedTuple):
    """`tokens` and `targets`, int64 [B, T]; `targets[b, t]` follows `tokens[b, t]` in the stream, or is -100."""

    tokens: np.ndarray
    targets: np.ndarray


class SequenceData:
    """Random access to N sequences of `context` tokens. Cheap to make; threads may share it."""

    def __init__(self, shards: Sequence[Shard], context: int) -> None:
        values: list[Any] = [shard.value for shard in shards]  # Any: the JSON of `write_rows`
        _check(values, context)
        files = [shard.file(TOKENS) for shard in shards]
        self.context = context
        self.num_target_tokens = sum(value["targets"] for value in values)
        self.digest = hashlib.sha256("".join(file.digest for file in files).encode()).hexdigest()
        """Digest of the tokens of all shards in order."""
        self._arrays = [open_array(file) for file in files]
        self._starts = np.cumsum([0, *(value["rows"] for value in values)])
        self._padding = {
            int(start) + value["padded_row"]: value["padding"]
            for start, value in zip(self._starts, values, strict=False)
            if value["padded_row"] is not None
        }

    def __len__(self) -> int:
        return int(self._starts[-1])

    def batch(self, indices: np.ndarray) -> Batch:
        """Return the sequences with these numbers (int64 [B]), in that order; IndexError outside [0, N)."""
        indices = np.asarray(indices, dtype=np.int64)
        if indices.size and (indices.min() < 0 or indices.max() >= len(self)):
            raise IndexError(f"sequences {indices.min()} to {indices.max()} of {len(self)}")
        rows = self._rows(indices)
        tokens, targets = rows[:, :-1].astype(np.int64), rows[:, 1:].astype(np.int64)
        for number, padding in self._padding.items():
            targets[indices == number, self.context - padding :] = IGNORED
        return Batch(tokens, targets)

    def _rows(self, indices: np.ndarray) -> np.ndarray:
        """Return the stored rows, [B, T + 1]."""
        homes = np.searchsorted(self._starts, indices, side="right") - 1
        used = np.unique(homes).tolist()
        if len(used) == 1:
            return self._arrays[int(used[0])].take(indices - self._starts[used[0]])
        rows: np.ndarray = np.empty((len(indices), self.context + 1), self._arrays[0].dtype)
        for home in used:
            here = homes == home
            rows[here] = self._arrays[home].take(indices[here] - self._starts[home])
        return rows


def _check(values: Sequence[Any], context: int) -> None:
    if not values:
        raise DataError("there are no sequences", hint="give the Sequences of a Shuffle step")
    for value in values:
        if value["context"] != context:
            raise DataError(
                f"the sequences have context {value['context']}, {context} is asked for",
                where="context",
                hint=f"use context={value['context']}, or shuffle again with context={context}",
            )
