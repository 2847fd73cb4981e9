"""Configuration of low-rank adapters. No torch here.

Source: Hu et al. 2021, LoRA, arXiv:2106.09685.
"""

from typing import Literal

from pydantic import Field

from marin.base.config import Config, Several

Projection = Literal[
    "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "c_attn", "c_proj", "c_fc"
]
"""A matrix inside a layer, by the last part of its Hugging Face name; those that begin with `c_` are GPT-2's."""


class Lora(Config):
    """Trains W + alpha / rank * B A with W as it was (section 4.1). B begins at zero: the first step is the base's."""

    rank: int = Field(ge=1)
    """Rows of A, columns of B."""
    alpha: float = Field(gt=0, allow_inf_nan=False)
    """The change is scaled by alpha / rank; twice the rank is usual."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Share of an adapter's inputs that is left out in training, chosen by seed, sample and adapter."""
    targets: Several[Projection] = ()
    """The matrices that get an adapter; none named: every matrix inside a layer."""

    @property
    def scale(self) -> float:
        """What the product B A is multiplied by."""
        return self.alpha / self.rank
