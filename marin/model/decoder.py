"""The decoder as a torch module whose parameters carry Hugging Face's names and shapes.

Invariant: `state_dict()` is what a Hugging Face checkpoint of the same configuration holds, key by key, so that
export is a cast and import is a load. A tied model has no `lm_head`. It knows nothing of optimisers or ranks.
Shape letters: B batch, T positions, D width, V vocabulary.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from marin.model.attention import Attention, RMSNorm
from marin.model.config import Decoder
from marin.model.cross_entropy import linear_cross_entropy, token_losses
from marin.model.rope import rotations


class SwiGLU(nn.Module):
    """Gated feed-forward layer (arXiv:2002.05202)."""

    def __init__(self, config: Decoder) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.width, config.mlp_size, bias=False)
        self.up_proj = nn.Linear(config.width, config.mlp_size, bias=False)
        self.down_proj = nn.Linear(config.mlp_size, config.width, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Return `down(silu(gate(x)) * up(x))`."""
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x_BTD)) * self.up_proj(x_BTD))
        return out


class Block(nn.Module):
    """One layer: attention and feed-forward, each on a normalised copy, each added to the residual stream."""

    def __init__(self, config: Decoder) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = SwiGLU(config)
        self.input_layernorm = RMSNorm(config.width, config.norm_eps)
        self.post_attention_layernorm = RMSNorm(config.width, config.norm_eps)

    def forward(self, x_BTD: Tensor, cos_TK: Tensor, sin_TK: Tensor) -> Tensor:
        """Return the residual stream after this layer."""
        x_BTD = x_BTD + self.self_attn(self.input_layernorm(x_BTD), cos_TK, sin_TK)
        out: Tensor = x_BTD + self.mlp(self.post_attention_layernorm(x_BTD))
        return out


class Body(nn.Module):
    """Embedding, layers and the last norm: what Hugging Face calls `model`."""

    def __init__(self, config: Decoder) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocabulary, config.width)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = RMSNorm(config.width, config.norm_eps)


class LanguageModel(nn.Module):
    """Decoder with its output layer; `marin.model.init` and `marin.model.hub` make one with weights."""

    def __init__(self, config: Decoder) -> None:
        super().__init__()
        self.config = config
        self.model = Body(config)
        self.lm_head = None if config.tied else nn.Linear(config.width, config.vocabulary, bias=False)

    @property
    def output_weight(self) -> Tensor:
        """The matrix `[V, D]` that makes logits: the embedding itself when tied."""
        return self.model.embed_tokens.weight if self.lm_head is None else self.lm_head.weight

    def hidden(self, tokens_BT: Tensor) -> Tensor:
        """Return the normalised hidden states `[B, T, D]` for int64 tokens; positions start at 0 in each row."""
        x_BTD: Tensor = self.model.embed_tokens(tokens_BT)
        cos_TK, sin_TK = rotations(self.config, tokens_BT.shape[1], tokens_BT.device)
        if torch.is_autocast_enabled(tokens_BT.device.type):
            dtype = torch.get_autocast_dtype(tokens_BT.device.type)
            x_BTD, cos_TK, sin_TK = x_BTD.to(dtype), cos_TK.to(dtype), sin_TK.to(dtype)
        for layer in self.model.layers:
            x_BTD = layer(x_BTD, cos_TK, sin_TK)
        out: Tensor = self.model.norm(x_BTD)
        return out

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """Return logits `[B, T, V]` for int64 tokens, whole in memory: for short inputs, not for training."""
        return F.linear(self.hidden(tokens_BT), self.output_weight)

    def loss_sum(self, tokens_BT: Tensor, targets_BT: Tensor) -> Tensor:
        """Return the fp32 sum of cross-entropy over targets that are not -100, with gradients."""
        return linear_cross_entropy(self.hidden(tokens_BT).flatten(0, 1), self.output_weight, targets_BT.flatten())

    def token_losses(self, tokens_BT: Tensor, targets_BT: Tensor) -> Tensor:
        """Return the fp32 cross-entropy of each target `[B, T]`, 0 where it is -100; no gradient."""
        with torch.no_grad():
            hidden_ND = self.hidden(tokens_BT).flatten(0, 1)
            return token_losses(hidden_ND, self.output_weight, targets_BT.flatten()).view_as(targets_BT)
