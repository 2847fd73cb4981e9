"""MinHash signatures of many texts at once: one permutation, k bins, the empty ones filled.

One permutation hashing (Li, Owen, Zhang 2012): the range of one hash is cut into k bins, and the least hash of each is
the signature. An empty bin takes the value of the first non-empty one in an order that is random but fixed for that
bin (Shrivastava 2017, "Optimal Densification for Fast and Accurate Minwise Hashing", with a permutation in place of
repeated draws). Two texts agree in a bin with probability of their Jaccard similarity. Dimensions: D texts, k bins.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from marin.data.duplicate_rules import MinHash
from marin.data.hashes import mix64, seed_hash
from marin.data.words import Texts, shingles_of, words_of

EMPTY = np.uint64(2**64 - 1)

SIGNATURE_VALUES = 2**20
"""Values filled together, to bound the memory for many short texts."""


class Signed(NamedTuple):
    """Signatures uint64 [D, k], and which texts have any shingle; the signature of one without means nothing."""

    values: np.ndarray
    any: np.ndarray


class Bands(NamedTuple):
    """Two 64-bit hashes of each band, uint64 [D, bands]: texts that agree in both meet in one bucket."""

    hashes: np.ndarray
    checks: np.ndarray


def sign_texts(texts: Texts, rule: MinHash) -> Signed:
    """Return a signature of `bands * rows` values for each text."""
    num_bins = rule.bands * rule.rows
    values = np.empty((texts.num_texts, num_bins), np.uint64)
    for first, block in texts.blocks():
        step = max(1, SIGNATURE_VALUES // num_bins)
        for at in range(0, block.num_texts, step):
            offsets = block.offsets[at : at + step + 1]
            part = Texts(block.data[offsets[0] : offsets[-1]], offsets - offsets[0])
            values[first + at : first + at + part.num_texts] = _sign(part, rule, num_bins)
    return Signed(values, (values != EMPTY).any(axis=1))


def bands_of(values: np.ndarray, rule: MinHash) -> Bands:
    """Return the buckets of signatures uint64 [D, bands * rows]."""
    banded = values.reshape(len(values), rule.bands, rule.rows)
    return Bands(*(_banded(banded, seed_hash(rule.seed, purpose)) for purpose in ("bands", "checks")))


def _banded(banded: np.ndarray, seed: np.uint64) -> np.ndarray:
    _, bands, rows = banded.shape
    factors = mix64(np.arange(rows, dtype=np.uint64) + seed) | np.uint64(1)
    return mix64((banded * factors).sum(axis=2, dtype=np.uint64) + mix64(np.arange(bands, dtype=np.uint64) ^ seed))


def _sign(texts: Texts, rule: MinHash, num_bins: int) -> np.ndarray:
    shingles = shingles_of(words_of(texts, rule.unit), rule.ngram)
    hashes = mix64(shingles.hashes ^ seed_hash(rule.seed, "minhash"))
    bins = ((hashes >> np.uint64(32)) * np.uint64(num_bins)) >> np.uint64(32)
    values = np.full(texts.num_texts * num_bins, EMPTY)
    np.minimum.at(values, bins.view(np.int64) + shingles.texts * num_bins, hashes)
    return _filled(values.reshape(texts.num_texts, num_bins), rule.seed)


def _filled(values: np.ndarray, seed: int) -> np.ndarray:
    """Fill the empty bins of each row that has a full one, in place."""
    num_bins = values.shape[1]
    rows, bins = np.divmod(np.flatnonzero(values == EMPTY), num_bins)
    some = np.bincount(rows, minlength=len(values))[rows] < num_bins
    rows, bins = rows[some], bins[some]
    order = _donors(num_bins, seed)
    filled = []  # written at the end: only bins that were full give
    for turn in range(num_bins):
        if not len(rows):
            break
        found = values[rows, order[turn, bins]]
        full = found != EMPTY
        filled.append((rows[full], bins[full], found[full]))
        rows, bins = rows[~full], bins[~full]
    for row, column, found in filled:
        values[row, column] = found
    return values


@lru_cache(maxsize=4)
def _donors(num_bins: int, seed: int) -> np.ndarray:
    """Return int64 [k, k]: column j is the order in which bin j asks the others."""
    pairs = np.arange(num_bins * num_bins, dtype=np.uint64).reshape(num_bins, num_bins)
    return np.argsort(mix64(pairs ^ seed_hash(seed, "donors")), axis=0, kind="stable")
