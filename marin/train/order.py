"""Order of the data as a pure function of the global stream position.

Position p is sample `p mod N` of epoch `p // N`: epoch 0 in the order that the shuffle stored, later epochs through a
Feistel permutation, in O(1) memory. World size, micro-batches and threads do not occur here, so they cannot matter.
"""

import numpy as np
from numpy.typing import NDArray

VERSION = 1
"""Of the order; a checkpoint written under another one cannot be resumed."""

_ROUNDS = 4
_INT64 = NDArray[np.int64]
_UINT64 = NDArray[np.uint64]


def samples(start: int, stop: int, *, num_sequences: int, seed: int) -> _INT64:
    """Return the sequence numbers at stream positions `start..stop-1`, int64."""
    positions = np.arange(start, stop, dtype=np.int64)
    epochs, numbers = positions // num_sequences, positions % num_sequences
    for epoch in np.unique(epochs[epochs > 0]):
        here = epochs == epoch
        numbers[here] = permuted(numbers[here], size=num_sequences, seed=seed, epoch=int(epoch))
    return numbers


def permuted(numbers: _INT64, *, size: int, seed: int, epoch: int) -> _INT64:
    """Return the images of numbers in `0..size-1` under this epoch's permutation of that range.

    Four Feistel rounds over the smallest even number of bits that holds `size`, walked along until the image
    is inside the range: fewer than four walks a number on average.
    """
    half = np.uint64(max(1, (max(1, size - 1).bit_length() + 1) // 2))
    salt = mix64(mix64(np.full(_ROUNDS, seed, dtype=np.uint64) ^ _ODD) ^ np.uint64(epoch))
    keys = mix64(salt ^ np.arange(_ROUNDS, dtype=np.uint64))
    values = _feistel(numbers.astype(np.uint64), half, keys)
    while (outside := values >= np.uint64(size)).any():
        values[outside] = _feistel(values[outside], half, keys)
    return values.astype(np.int64)


def audit_hash(step: int, numbers: _INT64) -> int:
    """Return a 64-bit hash of the samples of one step: the sum over parts of it is the hash of the whole.

    A signed int64, so that ranks can add theirs by an all-reduce that wraps around.
    """
    salt = mix64(np.array([step], dtype=np.uint64) + _ODD)
    return int(mix64(numbers.astype(np.uint64) + salt).sum(dtype=np.uint64).astype(np.int64))


def mix_audit(running: int, step_hash: int) -> int:
    """Return the running hash of a run after one more step; it depends on the order of the steps."""
    values = np.array([running ^ (step_hash & (2**64 - 1))], dtype=np.uint64)
    return int(mix64(values + _ODD)[0])


def share(num_samples: int, *, rank: int, world_size: int) -> slice:
    """Return the part of a step's samples that a rank computes; parts differ by at most one sample."""
    return slice(num_samples * rank // world_size, num_samples * (rank + 1) // world_size)


_ODD = np.uint64(0x9E3779B97F4A7C15)


def mix64(values: _UINT64) -> _UINT64:
    """Return the finaliser of splitmix64 (https://prng.di.unimi.it/splitmix64.c) of each value."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: _UINT64 = values ^ (values >> np.uint64(31))
    return mixed


def _feistel(values: _UINT64, half: np.uint64, keys: _UINT64) -> _UINT64:
    mask = (np.uint64(1) << half) - np.uint64(1)
    left, right = values >> half, values & mask
    for key in keys:
        left, right = right, left ^ (mix64(right + key) & mask)
    return (left << half) | right
