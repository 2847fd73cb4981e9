"""What makes two documents duplicates: configurations only."""

from typing import Literal, TypeAlias

from pydantic import Field

from marin.base.config import Config


class Exact(Config):
    """Documents with the same text, to the byte, by a 128-bit hash."""


class MinHash(Config):
    """Documents that share most of their shingles, by MinHash and banding (Broder 1997; Leskovec et al. 2014, ch. 3).

    Two documents of Jaccard similarity s meet with probability 1 - (1 - s^rows)^bands (`chance`). The defaults are
    those of FineWeb (Penedo et al. 2024, section 3.4): 56 % of pairs are found at 0.7, 77 % at 0.75, 92 % at 0.8.
    """

    ngram: int = Field(default=5, ge=1, le=64)
    """Words, or characters, in a shingle."""
    unit: Literal["words", "characters"] = "words"
    """Words as in `marin.data.words`; 13 characters suit text without spaces, at a third of the speed."""
    bands: int = Field(default=14, ge=1, le=256)
    rows: int = Field(default=8, ge=1, le=256)
    seed: int = Field(default=0, ge=0)

    @classmethod
    def at(cls, threshold: float, *, num_hashes: int = 128, ngram: int = 5, seed: int = 0) -> "MinHash":
        """Return the banding of at most `num_hashes` that errs least about `threshold`.

        The least sum of false positives and false negatives, each the area under the curve on its side of the
        threshold, as for similarities that are equally likely (Zhu et al. 2016).
        """
        shapes = [(num_hashes // rows, rows) for rows in range(1, num_hashes + 1) if num_hashes // rows <= 256]
        bands, rows = min(shapes, key=lambda shape: _error(threshold, *shape))
        return cls(ngram=ngram, bands=bands, rows=rows, seed=seed)

    def chance(self, similarity: float) -> float:
        """Return the probability that two documents of this Jaccard similarity are found."""
        return 1 - (1 - similarity**self.rows) ** self.bands


DuplicateRule: TypeAlias = Exact | MinHash


def _error(threshold: float, bands: int, rows: int) -> float:
    points = [(at + 0.5) / 1000 for at in range(1000)]
    found = [1 - (1 - point**rows) ** bands for point in points]
    return sum(chance if point < threshold else 1 - chance for point, chance in zip(points, found, strict=True))
