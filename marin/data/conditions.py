"""Thresholds on scores: which documents a filter keeps. Configurations only."""

from typing import TypeAlias

from pydantic import Field

from marin.base.config import Config
from marin.data.scorers import DUPLICATE_NGRAMS, TOP_NGRAMS


class AtLeast(Config):
    """Holds where a score is `value` or more."""

    column: str
    value: float = Field(allow_inf_nan=False)

    @property
    def reason(self) -> str:
        """Why a document was dropped for which it does not hold, such as `words < 50`."""
        return f"{self.column} < {self.value:g}"


class AtMost(Config):
    """Holds where a score is `value` or less."""

    column: str
    value: float = Field(allow_inf_nan=False)

    @property
    def reason(self) -> str:
        """Why a document was dropped for which it does not hold, such as `words > 100000`."""
        return f"{self.column} > {self.value:.10g}"


Condition: TypeAlias = AtLeast | AtMost

_DUPLICATES = (0.15, 0.14, 0.13, 0.12, 0.11, 0.10)
_TOPS = (0.20, 0.18, 0.16)


def gopher_rules() -> tuple[Condition, ...]:
    """Return the thresholds of Gopher (Rae et al. 2021, appendix A.1.1 and table A1), on `Gopher` and `Repetition`."""
    return (
        AtLeast(column="words", value=50),
        AtMost(column="words", value=100_000),
        AtLeast(column="mean_word_length", value=3),
        AtMost(column="mean_word_length", value=10),
        AtMost(column="symbols_per_word", value=0.1),
        AtMost(column="bullet_lines", value=0.9),
        AtMost(column="ellipsis_lines", value=0.3),
        AtLeast(column="alphabetic_words", value=0.8),
        AtLeast(column="stop_words", value=2),
        AtMost(column="duplicate_lines", value=0.3),
        AtMost(column="duplicate_paragraphs", value=0.3),
        AtMost(column="duplicate_line_characters", value=0.2),
        AtMost(column="duplicate_paragraph_characters", value=0.2),
        *(AtMost(column=f"top_{n}_gram", value=share) for n, share in zip(TOP_NGRAMS, _TOPS, strict=True)),
        *(
            AtMost(column=f"duplicate_{n}_gram", value=share)
            for n, share in zip(DUPLICATE_NGRAMS, _DUPLICATES, strict=True)
        ),
    )
