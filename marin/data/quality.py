"""Quality scores of one text: the rules of Gopher and C4, and shares of scripts.

Invariant: each is a function of the text alone, a ratio of whole numbers, and 0 where there is nothing to divide.
Lines end at line feeds; blank ones do not count. Words stand between white space, so that a text in a script without
spaces is a few long words: threshold such corpora on other scores.
"""

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

from marin.data.scorers import C4, Gopher, Scripts

BULLETS = ("-", "*", "•", "‣", "●", "○", "▪", "■", "◦", "–")
ELLIPSES = ("...", "…")
TERMINAL = (".", "!", "?", '"', "”", "。", "！", "？")

_SENTENCE_END = re.compile(r"[.!?]+(?=\s|[\"'”’)]|$)|[。！？]+")
_EDGE_PUNCTUATION = ".,;:!?\"'()[]{}“”‘’«»"

# From Unicode's Blocks.txt; of the blocks that mix, the letters.
_RANGES: dict[str, tuple[tuple[int, int], ...]] = {
    "latin": (
        (0x41, 0x5A),
        (0x61, 0x7A),
        (0xAA, 0xAA),
        (0xBA, 0xBA),
        (0xC0, 0xD6),
        (0xD8, 0xF6),
        (0xF8, 0x24F),
        (0x1E00, 0x1EFF),
        (0xFF21, 0xFF3A),
        (0xFF41, 0xFF5A),
    ),
    "greek": ((0x370, 0x373), (0x376, 0x377), (0x37B, 0x37D), (0x386, 0x386), (0x388, 0x3FF), (0x1F00, 0x1FFF)),
    "cyrillic": ((0x400, 0x481), (0x48A, 0x52F), (0x1C80, 0x1C8F)),
    "armenian": ((0x531, 0x556), (0x561, 0x587)),
    "hebrew": ((0x5D0, 0x5F2),),
    "arabic": ((0x620, 0x64A), (0x66E, 0x6D3), (0x750, 0x77F), (0x8A0, 0x8C9), (0xFB50, 0xFDFF), (0xFE70, 0xFEFC)),
    "devanagari": ((0x904, 0x939), (0x958, 0x961), (0x971, 0x97F)),
    "thai": ((0xE01, 0xE30), (0xE32, 0xE33), (0xE40, 0xE46)),
    "hangul": ((0x1100, 0x11FF), (0x3131, 0x318E), (0xAC00, 0xD7A3)),
    "kana": ((0x3041, 0x3096), (0x30A1, 0x30FA), (0x31F0, 0x31FF), (0xFF66, 0xFF9D)),
    "han": ((0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x323AF)),
}
_NAMES = (None, *_RANGES)


def _script_table() -> np.ndarray:
    table = np.zeros(0x110000, np.uint8)
    for number, ranges in enumerate(_RANGES.values(), start=1):
        for first, last in ranges:
            table[first : last + 1] = number
    return table


_SCRIPT_OF = _script_table()


def score_gopher(text: str, scorer: Gopher) -> dict[str, float]:
    """Return the scores of `Gopher`."""
    words = Counter(text.split())
    lines = lines_of(text)
    num_words = words.total()
    characters = sum(len(word) * count for word, count in words.items())
    alphabetic = sum(count for word, count in words.items() if word.isalpha() or any(map(str.isalpha, word)))
    bare = {word.strip(_EDGE_PUNCTUATION).lower() for word in words}
    symbols = text.count("#") + sum(map(text.count, ELLIPSES))
    return {
        "words": num_words,
        "mean_word_length": share(characters, num_words),
        "symbols_per_word": share(symbols, num_words),
        "bullet_lines": share(sum(line.startswith(BULLETS) for line in lines), len(lines)),
        "ellipsis_lines": share(sum(line.endswith(ELLIPSES) for line in lines), len(lines)),
        "alphabetic_words": share(alphabetic, num_words),
        "stop_words": sum(word.lower() in bare for word in set(scorer.stop_words)),
    }


def score_c4(text: str, scorer: C4) -> dict[str, float]:
    """Return the scores of `C4`."""
    lines = lines_of(text)
    return {
        "c4_terminal_lines": share(sum(line.endswith(TERMINAL) for line in lines), len(lines)),
        "c4_short_lines": share(sum(len(line.split(maxsplit=4)) < 5 for line in lines), len(lines)),
        "c4_javascript_lines": share(sum("javascript" in line.lower() for line in lines), len(lines)),
        "c4_sentences": sum(1 for _ in _SENTENCE_END.finditer(text)),
        "c4_braces": text.count("{") + text.count("}"),
        "c4_lorem_ipsum": text.lower().count("lorem ipsum"),
    }


def score_scripts(text: str, scorer: Scripts) -> dict[str, float]:
    """Return the scores of `Scripts`."""
    codes = np.frombuffer(text.encode("utf-32-le"), "<u4")
    counts = np.bincount(_SCRIPT_OF[codes], minlength=len(_NAMES)).tolist()
    letters = sum(counts[1:])
    return {f"script_{name}": share(counts[_NAMES.index(name)], letters) for name in scorer.scripts}


def lines_of(text: str) -> Sequence[str]:
    """Return the lines that are not blank, without white space around."""
    return [line for line in map(str.strip, text.split("\n")) if line]


def share(part: int, whole: int) -> float:
    """Return part / whole, 0 of nothing."""
    return part / whole if whole else 0.0
