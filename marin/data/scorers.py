"""Which scores a document gets: configurations only, so that planning needs no more.

What each computes is in `quality`, `repetition` and `fasttext_model`. Invariant: a score is a function of the text
alone. Thresholds are not known here: see `conditions`.
"""

from collections.abc import Callable, Mapping
from typing import Literal, TypeAlias

from pydantic import Field

from marin.base.config import Config, Placement, Several

Script = Literal[
    "latin", "greek", "cyrillic", "armenian", "hebrew", "arabic", "devanagari", "thai", "hangul", "kana", "han"
]

TOP_NGRAMS = (2, 3, 4)
DUPLICATE_NGRAMS = (5, 6, 7, 8, 9, 10)


class Gopher(Config):
    """Scores of the quality rules of Gopher (Rae et al. 2021, appendix A.1.1).

    `words` (separated by white space), `mean_word_length` in characters, `symbols_per_word` (hashes and ellipses),
    `bullet_lines` and `ellipsis_lines` (shares of lines that begin, end so), `alphabetic_words` (share of words with
    a letter), `stop_words` (how many of the list occur). Zero for a text without words.
    """

    stop_words: Several[str] = ("the", "be", "to", "of", "and", "that", "have", "with")
    """Those of the paper, English; compared in lower case without punctuation around."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the scores."""
        shares = ("bullet_lines", "ellipsis_lines", "alphabetic_words")
        return ("words", "mean_word_length", "symbols_per_word", *shares, "stop_words")


class Repetition(Config):
    """Scores of the repetition rules of Gopher (Rae et al. 2021, table A1), shares from 0 to 1.

    `duplicate_lines`, `duplicate_paragraphs`: of lines and paragraphs that occurred before in the text;
    `..._characters`: of their characters. `top_2_gram` ... `top_4_gram`: of the characters of words inside the most
    frequent n-gram of words; `duplicate_5_gram` ... `duplicate_10_gram`: inside all n-grams that occur twice. A
    character counts once where n-grams overlap.
    """

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the scores."""
        return (
            "duplicate_lines",
            "duplicate_paragraphs",
            "duplicate_line_characters",
            "duplicate_paragraph_characters",
            *(f"top_{n}_gram" for n in TOP_NGRAMS),
            *(f"duplicate_{n}_gram" for n in DUPLICATE_NGRAMS),
        )


class C4(Config):
    """Scores of the rules of C4 (Raffel et al. 2020, section 2.2), of whole documents; no line is taken out.

    `c4_terminal_lines`: share of lines that end in terminal punctuation; `c4_short_lines`: share with fewer than five
    words; `c4_sentences`; `c4_braces`: curly brackets; `c4_javascript_lines`: share that name JavaScript;
    `c4_lorem_ipsum`: how often it occurs.
    """

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the scores."""
        lines = ("c4_terminal_lines", "c4_short_lines", "c4_javascript_lines")
        return (*lines, "c4_sentences", "c4_braces", "c4_lorem_ipsum")


class Scripts(Config):
    """Share of letters that belong to each script, by Unicode block: `script_latin` and so on; 0 without letters."""

    scripts: Several[Script] = ("latin", "cyrillic", "arabic", "han")
    """Those that get a column; the share is one of the letters of all scripts that are known."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the scores."""
        return tuple(f"script_{name}" for name in self.scripts)


class FastText(Config):
    """Probabilities of labels by a fastText classifier (Joulin et al. 2017), of language or quality.

    A column `NAME_LABEL` for each label; 0 for one that the model did not consider. Line breaks are read as spaces,
    as fastText takes a line. Rounded to six digits.
    """

    url: Placement[str]
    """The model file (`.bin`, `.ftz`), pinned by content when planned; where it lies does not count."""
    labels: Several[str] = Field(min_length=1)
    """Labels without `__label__`, such as `en`."""
    name: str = "fasttext"
    """Begins the names of the columns; tells two models apart."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the scores."""
        return tuple(f"{self.name}_{label}" for label in self.labels)


BuiltIn: TypeAlias = Gopher | Repetition | C4 | Scripts | FastText

ScoringFunction: TypeAlias = Callable[[str], Mapping[str, float]]
"""A function at the top of a module of one's own: text to named, finite numbers, the same names for every text.

Its code, and that of every first-party function it reaches, counts in the fingerprint.
"""

Scorer: TypeAlias = BuiltIn | ScoringFunction
