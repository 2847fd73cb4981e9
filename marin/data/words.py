"""Words of many texts at once, as hashes: what MinHash and decontamination compare. No Python object a word.

A word is a run of characters that are neither white space nor punctuation; case does not count. Outside ASCII, what
separates and what is a capital is taken from Unicode 3.2, which every Python has, below U+10000, and a capital counts
as its small letter where both have as many bytes. Each character from U+3000 to U+9FFF (kana, han) is a word of its
own, as such scripts have no spaces. Invariant: the words of a text depend on that text alone, not on what it is batched
with nor on the version of Python. Dimensions: B bytes, D documents, W words, S shingles.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Literal, NamedTuple
from unicodedata import ucd_3_2_0 as unicode

import numpy as np
import pyarrow as pa

from marin.data.hashes import mix64

BLOCK_BYTES = 2**18
"""Bytes looked at together, to stay in a core's cache; part of the result, as a longer text is cut there."""

Unit = Literal["words", "characters"]

_BASE = 0x9E3779B97F4A7C15 | 1
_SHINGLE_BASE = np.uint64(0xD1B54A32D192ED03)
_PAUSE = mix64(np.array([1], np.uint64))[0]


def _powers(base: int) -> np.ndarray:
    """Return base^0 ... base^BLOCK_BYTES modulo 2^64."""
    steps = np.full(BLOCK_BYTES + 1, base, np.uint64)
    steps[0] = 1
    powers: np.ndarray = np.multiply.accumulate(steps)
    return powers


_POWERS = _powers(_BASE)
_INVERSES = _powers(pow(_BASE, -1, 2**64))


_LOWERED = bytes(byte if byte >= 128 or bytes([byte]).isalnum() else 0 for byte in bytes(range(256)).lower())
"""Each byte in lower case, 0 for those that separate."""


class Texts(NamedTuple):
    """UTF-8 texts one after another: `data` uint8 [B], text d is `data[offsets[d]:offsets[d + 1]]`."""

    data: np.ndarray
    offsets: np.ndarray

    @property
    def num_texts(self) -> int:
        """D."""
        return len(self.offsets) - 1

    def text(self, number: int) -> memoryview:
        """Return the bytes of one text."""
        return self.data[self.offsets[number] : self.offsets[number + 1]].data

    def blocks(self) -> Iterator[tuple[int, "Texts"]]:
        """Yield `(first, texts)`: as many texts as fit into a block, a longer one alone."""
        first = 0
        while first < self.num_texts:
            stop = int(np.searchsorted(self.offsets, self.offsets[first] + BLOCK_BYTES, side="right")) - 1
            stop = max(stop, first + 1)
            begin, end = self.offsets[first], self.offsets[stop]
            yield first, Texts(self.data[begin:end], self.offsets[first : stop + 1] - begin)
            first = stop


class Words(NamedTuple):
    """W words of D texts: `hashes` uint64 [W], bytes [begins, ends); text d has words [bounds[d], bounds[d + 1])."""

    hashes: np.ndarray
    begins: np.ndarray
    ends: np.ndarray
    bounds: np.ndarray


class Shingles(NamedTuple):
    """S runs of n words: `hashes` uint64 [S], the text of each, ascending, and its first word."""

    hashes: np.ndarray
    texts: np.ndarray
    firsts: np.ndarray


def texts_of(column: pa.ChunkedArray) -> Texts:
    """Return a `large_string` column without nulls; nothing is copied where it is one chunk."""
    chunks = [chunk for chunk in column.chunks if len(chunk)]
    if not chunks:
        return Texts(np.empty(0, np.uint8), np.zeros(1, np.int64))
    chunk = chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks)
    _, offsets, data = chunk.buffers()
    ends = np.frombuffer(offsets, np.int64)[chunk.offset : chunk.offset + len(chunk) + 1]
    flat = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    return Texts(flat, ends)


def texts_from(texts: list[str]) -> Texts:
    """Return texts given as strings."""
    return texts_of(pa.chunked_array([pa.array(texts, pa.large_string())]))


def words_of(texts: Texts, unit: Unit = "words") -> Words:
    """Return the words, or the characters, of one block of `Texts.blocks`.

    Characters: each one inside a word, and one for each run of separators.
    """
    if len(texts.data) <= BLOCK_BYTES:
        return _block_words(texts, unit)
    parts, begin = [], 0
    while begin < len(texts.data):
        end = _cut(texts.data, begin + BLOCK_BYTES)
        part = _block_words(Texts(texts.data[begin:end], np.array([0, end - begin])), unit)
        parts.append(part._replace(begins=part.begins + begin, ends=part.ends + begin))
        begin = end
    hashes, begins, ends = (np.concatenate([part[at] for part in parts]) for at in range(3))
    return Words(hashes, begins, ends, np.array([0, len(hashes)]))


def shingles_of(words: Words, n: int) -> Shingles:
    """Return all runs of n words inside each text; of a text with fewer words, the run of all."""
    lengths = np.diff(words.bounds)
    hashes = _runs(words.hashes, n)
    counts = np.maximum(lengths - n + 1, 0)
    texts = np.repeat(np.arange(len(lengths)), counts)
    firsts = np.arange(len(texts)) - np.repeat(np.cumsum(counts) - counts - words.bounds[:-1], counts)
    hashes = hashes[firsts]
    short = np.flatnonzero((lengths > 0) & (lengths < n))
    if len(short):
        hashes = np.concatenate([hashes, _short_runs(words, short, lengths[short])])
        texts = np.concatenate([texts, short])
        firsts = np.concatenate([firsts, words.bounds[short]])
        order = np.argsort(texts, kind="stable")
        hashes, texts, firsts = hashes[order], texts[order], firsts[order]
    return Shingles(mix64(hashes), texts, firsts)


def _runs(hashes: np.ndarray, n: int) -> np.ndarray:
    """Return a hash of words [i, i + n) for each i; those that cross into another text are not used."""
    num_runs = max(len(hashes) - n + 1, 0)
    run = hashes[:num_runs].copy()
    for at in range(1, n):
        run *= _SHINGLE_BASE
        run += hashes[at : at + num_runs]
    return run


def _short_runs(words: Words, short: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    run: np.ndarray = words.hashes[words.bounds[short]]
    for at in range(1, int(lengths.max())):
        longer = np.flatnonzero(lengths > at)
        run[longer] = run[longer] * _SHINGLE_BASE + words.hashes[words.bounds[short[longer]] + at]
    return run


def _block_words(texts: Texts, unit: Unit) -> Words:
    data, offsets = texts
    size = len(data)
    lowered = np.frombuffer(bytearray(data).translate(_LOWERED), np.uint8)
    inside = lowered != 0
    highest = int(data.max()) if size else 0
    wide = highest >= 0xE2
    if highest >= 0xC2:
        _fold(data, lowered, inside, num_bytes=2)
    if highest >= 0xE0:
        _fold(data, lowered, inside, num_bytes=3)
    begins, ends = (_words if unit == "words" else _characters)(texts, inside, wide)
    prefix = np.zeros(size + 1, np.uint64)
    np.multiply(lowered, _POWERS[:size], out=prefix[1:])
    np.cumsum(prefix[1:], out=prefix[1:])
    hashes = mix64((prefix[ends] - prefix[begins]) * _INVERSES[begins])
    if unit == "characters":
        hashes[~inside[begins]] = _PAUSE
    return Words(hashes, begins, ends, np.searchsorted(begins, offsets))


def _words(texts: Texts, inside: np.ndarray, wide: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return where words begin and end."""
    starts = inside.copy()
    starts[1:] = inside[1:] > inside[:-1]
    openings = _openings(texts)
    starts[openings] = inside[openings]
    if wide:
        _start_ideographs(texts.data, inside, starts)
    stops = inside.copy()
    stops[:-1] &= ~inside[1:] | starts[1:]
    return np.flatnonzero(starts), np.flatnonzero(stops) + 1


def _characters(texts: Texts, inside: np.ndarray, wide: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return where characters inside words, and runs of separators, begin and end."""
    leads = (texts.data & 0xC0) != 0x80
    pauses = ~inside
    starts = pauses.copy()
    starts[1:] &= inside[:-1]
    openings = _openings(texts)
    starts[openings] = pauses[openings]
    begins = np.flatnonzero(starts | (inside & leads))
    # Every byte of a text is in a unit, so that each ends where the next begins.
    return begins, np.append(begins[1:], len(inside))[: len(begins)]


def _openings(texts: Texts) -> np.ndarray:
    """Return where the texts that are not empty begin."""
    return texts.offsets[:-1][np.diff(texts.offsets) > 0]


def _fold(data: np.ndarray, lowered: np.ndarray, inside: np.ndarray, *, num_bytes: int) -> None:
    """Make characters of two or three bytes small, and separators of those that are, in place."""
    first, end = (0xC2, 0xE0) if num_bytes == 2 else (0xE0, 0xF0)
    leads = np.flatnonzero((data >= first) & (data < end))
    points = (data[leads] & (0xFF >> (num_bytes + 1))).astype(np.uint16)
    for at in range(1, num_bytes):
        points = (points << np.uint16(6)) | (data[leads + at] & np.uint8(0x3F))
    small, separates = _characters_below_10000()
    apart = leads[separates[points]]
    for at in range(num_bytes):
        inside[apart + at] = False
    capital = small[points] != points
    leads, points = leads[capital], small[points[capital]]
    for at in range(num_bytes - 1, 0, -1):
        lowered[leads + at] = 0x80 | (points & 0x3F)
        points = points >> np.uint16(6)
    lowered[leads] = (0xFF << (8 - num_bytes) & 0xFF) | points


@lru_cache(maxsize=1)
def _characters_below_10000() -> tuple[np.ndarray, np.ndarray]:
    """Return the small letter of each character, uint16 [65536], and whether it separates words, bool [65536]."""
    small = np.arange(0x10000, dtype=np.uint16)
    separates = np.zeros(0x10000, np.bool_)
    for point in (*range(0x80, 0xD800), *range(0xE000, 0x10000)):
        character = chr(point)
        kind = unicode.category(character)
        separates[point] = kind[0] in "PZ" or kind == "Cc"
        lower = character.lower()
        if kind == "Lu" and len(lower) == 1 and len(lower.encode()) == len(character.encode()):
            small[point] = ord(lower)
    return small, separates


def _start_ideographs(data: np.ndarray, inside: np.ndarray, starts: np.ndarray) -> None:
    """Begin a word at each character from U+3000 to U+9FFF (lead bytes E3 to E9), and after it."""
    leads = np.flatnonzero((data >= 0xE3) & (data <= 0xE9))
    starts[leads] = inside[leads]
    after = leads + 3
    after = after[after < len(data)]
    starts[after] = inside[after]


def _cut(data: np.ndarray, at: int) -> int:
    """Return `at`, moved back to where a character begins."""
    if at >= len(data):
        return len(data)
    while data[at] & 0xC0 == 0x80:
        at -= 1
    return at
