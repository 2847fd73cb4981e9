"""What a mixture is made of over time, as a user types it. Light: no numpy here."""

import math
from typing import Literal

from pydantic import Field

from marin.base.config import Config
from marin.base.errors import ConfigurationError

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
        for name, weight in self.weights.items():
            if not (math.isfinite(weight) and weight > 0):
                raise ConfigurationError(
                    f"the weight of `{name}` is {weight}, which is not above 0",
                    where="Phase.weights",
                    hint=f"give `{name}` a share between 0 and 1, or leave it out of this phase",
                )
        whole = math.fsum(self.weights.values())
        if abs(whole - 1) > _TOLERANCE:
            shares = ", ".join(f"{name!r}: {weight / whole:.6g}" for name, weight in self.weights.items())
            hint = f"weights={{{shares}}}" if self.weights else "give each source its share"
            raise ConfigurationError(f"the weights sum to {whole:.6g}, not to 1", where="Phase.weights", hint=hint)
