"""What a mixture is made of over time, as a user types it. Light: no numpy here."""

import math
from collections.abc import Iterable, Mapping
from typing import Literal

from pydantic import Field

from marin.base.config import Config
from marin.base.errors import ConfigurationError, did_you_mean

Exhausted = Literal["repeat", "stop", "error"]
Unit = Literal["sequences", "tokens"]

_TOLERANCE = 1e-6
"""How far weights may be from summing to 1: rounding in what a user types, as in three times 0.333333."""


class Phase(Config):
    """A part of a mixture in which weights stay the same."""

    length: int = Field(ge=1)
    """Of this phase, in the mixture's unit."""
    weights: dict[str, float]
    """Share of each source, by its name; shares sum to 1. A source that is not named has no part in this phase."""

    def model_post_init(self, context: object, /) -> None:
        """Check the weights."""
        check_shares(self.weights, where="Phase.weights")


def check_shares(weights: Mapping[str, float], *, where: str) -> None:
    """Raise ConfigurationError unless all weights are above 0 and they sum to 1."""
    for name, weight in weights.items():
        if not (math.isfinite(weight) and weight > 0):
            raise ConfigurationError(
                f"the weight of `{name}` is {weight}, which is not above 0",
                where=where,
                hint=f"give `{name}` a share between 0 and 1, or leave it out",
            )
    whole = math.fsum(weights.values())
    if abs(whole - 1) > _TOLERANCE:
        shares = ", ".join(f"{name!r}: {weight / whole:.6g}" for name, weight in weights.items())
        hint = f"weights={{{shares}}}" if weights else "give each source its share"
        raise ConfigurationError(f"the weights sum to {whole:.6g}, not to 1", where=where, hint=hint)


def check_named(weights: Iterable[str], sources: Iterable[str], *, where: str) -> None:
    """Raise ConfigurationError unless the weights are of the sources, and each source has one."""
    named, known = set(weights), set(sources)
    for name in sorted(named - known):
        hint = did_you_mean(name, known) or f"the sources are {', '.join(sorted(known))}"
        raise ConfigurationError(f"there is no source `{name}`", where=where, hint=hint)
    for name in sorted(known - named):
        raise ConfigurationError(
            f"the source `{name}` has no weight", where=where, hint="give it a weight, or leave it out"
        )
