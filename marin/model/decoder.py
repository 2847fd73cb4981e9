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
from marin.model.documents import Places, places
from marin.model.gpt2 import Gpt2Body
from marin.model.recompute import through
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

    def forward(self, x_BTD: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None) -> Tensor:
        """Return the residual stream after this layer."""
        x_BTD = x_BTD + self.self_attn(self.input_layernorm(x_BTD), cos, sin, mask)
        out: Tensor = x_BTD + self.mlp(self.post_attention_layernorm(x_BTD))
        return out


class Body(nn.Module):
    """Embedding, layers and the last norm: what Hugging Face calls `model`."""

    def __init__(self, config: Decoder) -> None:
        super().__init__()
        self.config = config
        self.recompute = False
        self.embed_tokens = nn.Embedding(config.vocabulary, config.width)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = RMSNorm(config.width, config.norm_eps)

    def forward(self, tokens_BT: Tensor, where: Places) -> Tensor:
        """Return the normalised hidden states `[B, T, D]`."""
        x_BTD: Tensor = self.embed_tokens(tokens_BT)
        cos, sin = rotations(self.config, where.positions)
        if torch.is_autocast_enabled(tokens_BT.device.type):
            dtype = torch.get_autocast_dtype(tokens_BT.device.type)
            x_BTD, cos, sin = x_BTD.to(dtype), cos.to(dtype), sin.to(dtype)
        for layer in self.layers:
            x_BTD = through(layer, x_BTD, cos, sin, where.mask, again=self.recompute)
        out: Tensor = self.norm(x_BTD)
        return out


class LanguageModel(nn.Module):
    """Decoder with its output layer; `marin.model.init` and `marin.model.hub` make one with weights.

    Every method takes `segments` and `positions`, integers `[B, T]`: a token sees its own segment only, and positions
    start at 0 in each. Without them each row is one document.
    """

    def __init__(self, config: Decoder) -> None:
        super().__init__()
        self.config = config
        if config.family == "gpt2":
            self.transformer = Gpt2Body(config)
        else:
            self.model = Body(config)
        self.lm_head = None if config.tied else nn.Linear(config.width, config.vocabulary, bias=False)

    @property
    def output_weight(self) -> Tensor:
        """The matrix `[V, D]` that makes logits: the embedding itself when tied."""
        if self.lm_head is not None:
            return self.lm_head.weight
        return self.transformer.wte.weight if self.config.family == "gpt2" else self.model.embed_tokens.weight

    @property
    def layers(self) -> nn.ModuleList:
        """The blocks, first to last."""
        return self.transformer.h if self.config.family == "gpt2" else self.model.layers

    def recompute_layers(self) -> None:
        """From now on keep each layer's input alone and compute the layer again for its gradients."""
        (self.transformer if self.config.family == "gpt2" else self.model).recompute = True

    def hidden(
        self, tokens_BT: Tensor, segments_BT: Tensor | None = None, positions_BT: Tensor | None = None
    ) -> Tensor:
        """Return the normalised hidden states `[B, T, D]` for int64 tokens."""
        body = self.transformer if self.config.family == "gpt2" else self.model
        out: Tensor = body(tokens_BT, places(tokens_BT, segments_BT, positions_BT))
        return out

    def forward(
        self, tokens_BT: Tensor, segments_BT: Tensor | None = None, positions_BT: Tensor | None = None
    ) -> Tensor:
        """Return logits `[B, T, V]` for int64 tokens, whole in memory: for short inputs, not for training."""
        return F.linear(self.hidden(tokens_BT, segments_BT, positions_BT), self.output_weight)

    def likeliest(self, tokens_BT: Tensor, lengths_B: Tensor) -> Tensor:
        """Return the likeliest token behind the first `lengths_B` tokens of each row, int64 `[B]`; no gradient."""
        with torch.no_grad():
            hidden_BTD = self.hidden(tokens_BT)
            last_BD = hidden_BTD[torch.arange(len(lengths_B), device=lengths_B.device), lengths_B - 1]
            return F.linear(last_BD, self.output_weight).argmax(dim=-1)

    def loss_sum(
        self,
        tokens_BT: Tensor,
        targets_BT: Tensor,
        segments_BT: Tensor | None = None,
        positions_BT: Tensor | None = None,
        *,
        z_loss: float = 0.0,
    ) -> Tensor:
        """Return the fp32 sum of cross-entropy over targets that are not -100, with gradients.

        The gradients are those of the sum plus `z_loss` times the sum of squared log normalisers.
        """
        hidden_ND = self.hidden(tokens_BT, segments_BT, positions_BT).flatten(0, 1)
        return linear_cross_entropy(hidden_ND, self.output_weight, targets_BT.flatten(), z_loss=z_loss)

    def token_losses(
        self,
        tokens_BT: Tensor,
        targets_BT: Tensor,
        segments_BT: Tensor | None = None,
        positions_BT: Tensor | None = None,
    ) -> Tensor:
        """Return the fp32 cross-entropy of each target `[B, T]`, 0 where it is -100; no gradient."""
        with torch.no_grad():
            hidden_ND = self.hidden(tokens_BT, segments_BT, positions_BT).flatten(0, 1)
            return token_losses(hidden_ND, self.output_weight, targets_BT.flatten()).view_as(targets_BT)
