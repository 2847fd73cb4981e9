"""Causal self-attention with grouped key-value heads and rotary positions.

Parameter names and shapes are Hugging Face's. Positions and masks both come from the caller (`documents.places`).
Shape letters: B batch, T positions, D width, H query heads, G key-value heads, K head size.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from marin.model.config import Decoder
from marin.model.rope import rotate


class RMSNorm(nn.Module):
    """Root-mean-square normalisation (arXiv:1910.07467): computed in fp32, cast back, then scaled."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Return `x` (any shape, last dimension `size`) normalised over its last dimension, in its own dtype."""
        wide = x.float()
        normal = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + self.eps)
        return self.weight.to(x.dtype) * normal.to(x.dtype)


def mixed(query_BHTK: Tensor, key_BGTK: Tensor, value_BGTK: Tensor, mask: Tensor | None, *, grouped: bool) -> Tensor:
    """Return softmax(query key / sqrt(K)) value, causal without a mask; `grouped`: G is less than H."""
    if mask is None:
        return F.scaled_dot_product_attention(query_BHTK, key_BGTK, value_BGTK, is_causal=True, enable_gqa=grouped)
    if grouped:  # no fused CUDA kernel takes a mask and groups together
        copies = query_BHTK.shape[1] // key_BGTK.shape[1]
        key_BGTK, value_BGTK = (x.repeat_interleave(copies, dim=1) for x in (key_BGTK, value_BGTK))
    return F.scaled_dot_product_attention(query_BHTK, key_BGTK, value_BGTK, attn_mask=mask)


class Attention(nn.Module):
    """Causal attention; queries, keys and values are projected apart, as checkpoints store them."""

    def __init__(self, config: Decoder) -> None:
        super().__init__()
        size, bias = config.head_size, config.qkv_bias
        self.head_size = size
        self.grouped = config.num_kv_heads != config.heads
        self.q_proj = nn.Linear(config.width, config.heads * size, bias=bias)
        self.k_proj = nn.Linear(config.width, config.num_kv_heads * size, bias=bias)
        self.v_proj = nn.Linear(config.width, config.num_kv_heads * size, bias=bias)
        self.o_proj = nn.Linear(config.heads * size, config.width, bias=False)
        self.q_norm = RMSNorm(size, config.norm_eps) if config.qk_norm else None
        self.k_norm = RMSNorm(size, config.norm_eps) if config.qk_norm else None

    def forward(self, x_BTD: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the attention's output `[B, T, D]`, each position seeing itself and what is before it.

        `cos`, `sin` from `rope.rotations`; `mask` bool `[B, 1, T, T]`, causal already, instead of all before it.
        """
        query_BHTK = self._heads(self.q_proj(x_BTD), self.q_norm)
        key_BGTK = self._heads(self.k_proj(x_BTD), self.k_norm)
        value_BGTK = self._heads(self.v_proj(x_BTD), None)
        query_BHTK = rotate(query_BHTK, cos, sin)
        key_BGTK = rotate(key_BGTK, cos, sin)
        mixed_BHTK = mixed(query_BHTK, key_BGTK, value_BGTK, mask, grouped=self.grouped)
        out: Tensor = self.o_proj(mixed_BHTK.transpose(1, 2).flatten(2))
        return out

    def _heads(self, x_BTC: Tensor, norm: RMSNorm | None) -> Tensor:
        x_BTHK = x_BTC.view(*x_BTC.shape[:-1], -1, self.head_size)
        if norm is not None:
            x_BTHK = norm(x_BTHK)
        return x_BTHK.transpose(1, 2)
