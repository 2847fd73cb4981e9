"""Repetition inside one text: duplicate lines, paragraphs and n-grams of words (Rae et al. 2021, table A1).

Invariant: exact, no hash: n-grams are numbered by sorting. Shares are of characters, white space left out for n-grams.
Dimension: W words.
"""

import re
from collections.abc import Sequence

import numpy as np

from marin.data.quality import lines_of, share
from marin.data.scorers import DUPLICATE_NGRAMS, TOP_NGRAMS, Repetition

_BLANK_LINES = re.compile(r"\n\s*\n")


def score_repetition(text: str, scorer: Repetition) -> dict[str, float]:
    """Return the scores of `Repetition`."""
    lines, line_characters = _repeated(lines_of(text))
    paragraphs, paragraph_characters = _repeated([part for part in map(str.strip, _BLANK_LINES.split(text)) if part])
    return {
        "duplicate_lines": lines,
        "duplicate_paragraphs": paragraphs,
        "duplicate_line_characters": line_characters,
        "duplicate_paragraph_characters": paragraph_characters,
        **_ngram_scores(text.split()),
    }


def _repeated(parts: Sequence[str]) -> tuple[float, float]:
    """Return which share of the parts occurred before, by number and by characters."""
    seen = set(parts)
    characters = sum(map(len, parts))
    return share(len(parts) - len(seen), len(parts)), share(characters - sum(map(len, seen)), characters)


def _ngram_scores(words: Sequence[str]) -> dict[str, float]:
    numbers: dict[str, int] = {}
    ids = np.array([numbers.setdefault(word, len(numbers)) for word in words], dtype=np.int64)
    lengths = np.fromiter(map(len, words), np.int64, len(words))
    scores = {}
    grams, num_grams = ids, len(numbers)
    for n in range(2, DUPLICATE_NGRAMS[-1] + 1):
        # An n-gram is an (n-1)-gram and a word: numbered anew, so that the product never overflows.
        grams = grams[:-1] * np.int64(len(numbers)) + ids[n - 1 :]
        _, first, grams, counts = np.unique(grams, return_index=True, return_inverse=True, return_counts=True)
        num_grams = len(counts)
        if n in TOP_NGRAMS:
            scores[f"top_{n}_gram"] = _top(grams, first, counts, lengths, n)
        if n in DUPLICATE_NGRAMS:
            repeated = counts[grams] > 1 if num_grams else np.empty(0, bool)
            scores[f"duplicate_{n}_gram"] = _covered(np.flatnonzero(repeated), lengths, n)
    return scores


def _top(grams: np.ndarray, first: np.ndarray, counts: np.ndarray, lengths: np.ndarray, n: int) -> float:
    """Return the share of the most frequent n-gram, the longest of equals, the first of those; 0 if none repeats."""
    if not len(counts) or counts.max() < 2:
        return 0.0
    most = np.flatnonzero(counts == counts.max())
    ends = np.concatenate([[0], np.cumsum(lengths)])
    sizes = ends[first[most] + n] - ends[first[most]]
    top = most[np.lexsort((first[most], -sizes))[0]]
    return _covered(np.flatnonzero(grams == top), lengths, n)


def _covered(starts: np.ndarray, lengths: np.ndarray, n: int) -> float:
    """Return the share of characters in words that an n-gram beginning at one of `starts` covers."""
    edges = np.zeros(len(lengths) + 1, np.int64)
    np.add.at(edges, starts, 1)
    np.add.at(edges, starts + n, -1)
    inside = np.cumsum(edges[:-1]) > 0
    return share(int(lengths[inside].sum()), int(lengths.sum()))
