"""Rotary position embedding (RoFormer, arXiv:2104.09864), half rotation as in Hugging Face's Llama.

Invariant: angles are computed in fp32 from the configuration whenever they are needed anew. They are never a
parameter or a buffer, so no cast of the model can round them.
Shape letters: B batch, H heads, T positions, K head size.
"""

import math

import torch
from torch import Tensor

from marin.model.config import Decoder


def inverse_frequencies(config: Decoder, device: torch.device) -> Tensor:
    """Return the fp32 frequencies `[K/2]`, scaled as Llama 3.1 scales them if the configuration says so."""
    exponents = torch.arange(0, config.head_size, 2, dtype=torch.int64, device=device).float() / config.head_size
    frequencies = 1.0 / (config.rope_theta**exponents)
    scaling = config.rope_scaling
    if scaling is None:
        return frequencies
    wavelengths = 2 * math.pi / frequencies
    low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
    smooth = ((scaling.original_context / wavelengths - low) / (high - low)).clamp(0, 1)
    return (1 - smooth) * frequencies / scaling.factor + smooth * frequencies


def rotations(config: Decoder, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Return fp32 `(cos, sin)` for integer positions, `[T]` to `[T, K]` or `[B, T]` to `[B, 1, T, K]`.

    The sine's first half is negated for `rotate`. Angles of equal positions are equal to the bit.
    """
    angles = positions.float().unsqueeze(-1) * inverse_frequencies(config, positions.device)
    if angles.ndim == 3:
        angles = angles.unsqueeze(1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)


def rotate(x_BHTK: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn each pair (k, k + K/2) of every head by its position's angle (from `rotations`); dtype and shape stay."""
    half = x_BHTK.shape[-1] // 2
    swapped = torch.cat((x_BHTK[..., half:], x_BHTK[..., :half]), dim=-1)
    return x_BHTK * cos + swapped * sin
