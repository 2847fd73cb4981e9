"""GPT-2's body (Radford et al. 2019): learned positions, LayerNorm, GELU, a bias in every projection.

Parameter names and shapes are Hugging Face's, who keep OpenAI's `[in, out]` matrices: the modules here compute with
that layout, so neither import nor export transposes. There is no dropout.
Shape letters: B batch, T positions, D width, H heads, K head size.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from marin.base.errors import ConfigurationError
from marin.model.attention import mixed
from marin.model.config import Decoder
from marin.model.documents import Places
from marin.model.recompute import through


class Conv1D(nn.Module):
    """`x @ weight + bias`, the weight stored `[in, out]`."""

    def __init__(self, num_in: int, num_out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(num_in, num_out))
        self.bias = nn.Parameter(torch.zeros(num_out))

    def forward(self, x: Tensor) -> Tensor:
        """Return `[..., out]` for `[..., in]`."""
        return F.linear(x, self.weight.T, self.bias)


class Gpt2Attention(nn.Module):
    """Causal attention; one product makes queries, keys and values."""

    def __init__(self, config: Decoder) -> None:
        super().__init__()
        self.head_size = config.head_size
        self.c_attn = Conv1D(config.width, 3 * config.width)
        self.c_proj = Conv1D(config.width, config.width)

    def forward(self, x_BTD: Tensor, mask: Tensor | None) -> Tensor:
        """Return the attention's output `[B, T, D]`; `mask` as in `marin.model.attention`."""
        parts = self.c_attn(x_BTD).split(x_BTD.shape[-1], dim=-1)
        query, key, value = (part.unflatten(-1, (-1, self.head_size)).transpose(1, 2) for part in parts)
        out: Tensor = self.c_proj(mixed(query, key, value, mask, grouped=False).transpose(1, 2).flatten(2))
        return out


class Gpt2Mlp(nn.Module):
    """Feed-forward layer with GELU in its tanh form."""

    def __init__(self, config: Decoder) -> None:
        super().__init__()
        self.c_fc = Conv1D(config.width, config.mlp_size)
        self.c_proj = Conv1D(config.mlp_size, config.width)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Return `proj(gelu(fc(x)))`."""
        out: Tensor = self.c_proj(F.gelu(self.c_fc(x_BTD), approximate="tanh"))
        return out


class Gpt2Block(nn.Module):
    """One layer: attention and feed-forward, each on a normalised copy, each added to the residual stream."""

    def __init__(self, config: Decoder) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.attn = Gpt2Attention(config)
        self.ln_2 = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.mlp = Gpt2Mlp(config)

    def forward(self, x_BTD: Tensor, mask: Tensor | None) -> Tensor:
        """Return the residual stream after this layer."""
        x_BTD = x_BTD + self.attn(self.ln_1(x_BTD), mask)
        out: Tensor = x_BTD + self.mlp(self.ln_2(x_BTD))
        return out


class Gpt2Body(nn.Module):
    """Embeddings of tokens and positions, layers and the last norm: what Hugging Face calls `transformer`."""

    def __init__(self, config: Decoder) -> None:
        super().__init__()
        if config.context is None:
            raise ConfigurationError(
                "a GPT-2 has one embedding a position, and the number of positions is not known yet",
                where="Decoder.context",
                hint="give `context`, or take it from the data with `with_data`",
            )
        self.recompute = False
        self.wte = nn.Embedding(config.vocabulary, config.width)
        self.wpe = nn.Embedding(config.context, config.width)
        self.h = nn.ModuleList(Gpt2Block(config) for _ in range(config.layers))
        self.ln_f = nn.LayerNorm(config.width, eps=config.norm_eps)

    def forward(self, tokens_BT: Tensor, where: Places) -> Tensor:
        """Return the normalised hidden states `[B, T, D]`; positions beyond the context are an IndexError."""
        x_BTD: Tensor = self.wte(tokens_BT) + self.wpe(where.positions)
        if torch.is_autocast_enabled(tokens_BT.device.type):
            x_BTD = x_BTD.to(torch.get_autocast_dtype(tokens_BT.device.type))
        for layer in self.h:
            x_BTD = through(layer, x_BTD, where.mask, again=self.recompute)
        out: Tensor = self.ln_f(x_BTD)
        return out
