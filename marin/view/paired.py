"""Two evaluations on the same items: what they differ in, and how sure that is.

Pure arithmetic on columns of numbers. Items are drawn anew with both models' answers together, so that what makes an
item hard for both does not blur the difference. Every number is a function of the items alone.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_RESAMPLES = 1000
_DRAWN_AT_ONCE = 1 << 22  # items: 32 MB


class Measured(NamedTuple):
    """One measure of the items of one model: its score is sum(parts) / sum(sizes)."""

    parts: Floats
    sizes: Floats


class Difference(NamedTuple):
    """Scores of A and B in one measure, and B - A with its 95 % interval over items."""

    a: float
    b: float
    difference: float
    low: float
    high: float


class Discordance(NamedTuple):
    """Items that one of two models alone gets right, and how likely so unequal counts are if both are equally good."""

    only_a: int
    only_b: int
    p: float


def differences(pairs: Sequence[tuple[Measured, Measured]]) -> list[Difference]:
    """Return the difference in each measure; all are of the same items, in the same order.

    The interval is the paired bootstrap's, 2.5 to 97.5 percent of 1,000 draws, seed 0 (Efron and Tibshirani 1993,
    section 13.3).
    """
    columns = np.stack([column for a, b in pairs for column in (*a, *b)], axis=1)
    count = len(columns)
    generator = np.random.default_rng(0)
    at_once = max(1, _DRAWN_AT_ONCE // count)
    sums = np.concatenate(
        [
            generator.multinomial(count, np.full(count, 1 / count), size=min(at_once, _RESAMPLES - begin)) @ columns
            for begin in range(0, _RESAMPLES, at_once)
        ]
    )
    return [
        _difference(columns.sum(axis=0)[place : place + 4], sums[:, place : place + 4])
        for place in range(0, columns.shape[1], 4)
    ]


def _difference(whole: Floats, drawn: Floats) -> Difference:
    a, b = float(whole[0] / whole[1]), float(whole[2] / whole[3])
    ratios = drawn[:, 2] / np.maximum(drawn[:, 3], 1) - drawn[:, 0] / np.maximum(drawn[:, 1], 1)
    low, high = np.percentile(ratios, [2.5, 97.5])
    return Difference(a, b, b - a, float(low), float(high))


def discordance(correct_a: NDArray[np.bool_], correct_b: NDArray[np.bool_]) -> Discordance:
    """Return McNemar's test in its exact, two-sided form: a binomial test of the items that one alone gets right."""
    only_a, only_b = int((correct_a & ~correct_b).sum()), int((correct_b & ~correct_a).sum())
    count, term, tail = only_a + only_b, 1, 0
    for smaller in range(min(only_a, only_b) + 1):
        tail += term
        term = term * (count - smaller) // (smaller + 1)
    return Discordance(only_a, only_b, min(1.0, 2 * tail / 2**count))
