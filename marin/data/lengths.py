"""Histograms of lengths: buckets of an eighth of an octave, so that any quantile is known to 12.5 %.

Invariant: the histogram of all shards is the sum of theirs. Buckets are named by the lowest length in them; lengths
below 16 have one each.
"""

from collections.abc import Mapping

import numpy as np

QUANTILES = (0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99)
_EXACT = 16


def histogram(lengths: np.ndarray) -> dict[str, int]:
    """Return `{lowest length of the bucket: count}` of lengths, int64 [N], from 0 on."""
    buckets, counts = np.unique(_lowest(lengths), return_counts=True)
    return {str(bucket): count for bucket, count in zip(buckets.tolist(), counts.tolist(), strict=True)}


def quantiles(counts: Mapping[str, int]) -> dict[str, int]:
    """Return for each of `QUANTILES` the highest length of its bucket; nothing for an empty histogram."""
    buckets = sorted((int(bucket), count) for bucket, count in counts.items())
    total, found = sum(counts.values()), {}
    for wanted in QUANTILES if total else ():
        seen = 0
        for bucket, count in buckets:
            seen += count
            if seen >= wanted * total:
                found[f"p{100 * wanted:g}"] = _highest(bucket)
                break
    return found


def octaves(counts: Mapping[str, int]) -> list[tuple[int, int]]:
    """Return the counts by powers of two, from the first to the last that has any: 0, 1, 2-3, 4-7 and so on."""
    sums: dict[int, int] = {}
    for bucket, count in counts.items():
        octave = int(bucket).bit_length()
        sums[octave] = sums.get(octave, 0) + count
    span = range(min(sums), max(sums) + 1) if sums else ()
    return [((1 << octave) >> 1, sums.get(octave, 0)) for octave in span]


def _lowest(lengths: np.ndarray) -> np.ndarray:
    _, exponents = np.frexp(lengths.astype(np.float64))  # length = m * 2^exponent, m from a half to one
    widths = np.int64(1) << np.maximum(exponents.astype(np.int64) - 4, 0)
    return np.asarray(lengths // widths * widths)


def _highest(bucket: int) -> int:
    return bucket if bucket < _EXACT else bucket + (1 << (bucket.bit_length() - 4)) - 1
