"""Configuration of the decoder: shapes only, no torch.

Invariant: a `Decoder` that exists can be built, once its vocabulary is known. What is left open (`vocab_size`,
`context`) is taken from the data. It must not know torch, so that planning a pipeline stays light.
"""

from typing import Self

from pydantic import Field, model_validator

from marin.base.config import Config
from marin.base.errors import ConfigurationError


class RopeScaling(Config):
    """Stretches RoPE to a longer context the way Llama 3.1 does (rope type `llama3`)."""

    factor: float = Field(gt=1)
    low_frequency_factor: float = Field(default=1.0, gt=0)
    high_frequency_factor: float = Field(default=4.0, gt=0)
    original_context: int = Field(default=8192, ge=1)


class Decoder(Config):
    """Decoder-only transformer: RMSNorm, RoPE, grouped-query attention, SwiGLU.

    Without `qk_norm` and `qkv_bias` it is a Llama, with `qkv_bias` a Qwen2, with `qk_norm` a Qwen3.
    """

    layers: int = Field(ge=1)
    width: int = Field(ge=1)
    """Size of the residual stream."""
    heads: int = Field(ge=1)
    """Query heads."""
    kv_heads: int | None = Field(default=None, ge=1)
    """Key and value heads; as many as `heads` by default."""
    head_width: int | None = Field(default=None, ge=2)
    """Size of one head; `width / heads` by default."""
    mlp_width: int | None = Field(default=None, ge=1)
    """Inner size of SwiGLU; 8/3 of `width`, rounded up to a multiple of 64, by default."""
    vocab_size: int | None = Field(default=None, ge=1)
    """Rows of the embedding; the vocabulary of the data by default."""
    context: int | None = Field(default=None, ge=1)
    """Tokens of a sequence; the context of the data by default."""
    rope_theta: float = Field(default=10_000.0, gt=1)
    rope_scaling: RopeScaling | None = None
    norm_eps: float = Field(default=1e-5, gt=0)
    tied: bool = True
    """Whether the output layer is the embedding."""
    qk_norm: bool = False
    """RMSNorm over each head of queries and keys (Qwen3)."""
    qkv_bias: bool = False
    """Bias of the query, key and value projections (Qwen2)."""
    init_std: float = Field(default=0.02, gt=0)
    """Standard deviation of initial weights; those that write to the residual stream get 1/sqrt(2 layers) of it."""

    @model_validator(mode="after")
    def _check_shapes(self) -> Self:
        if self.head_width is None and self.width % self.heads:
            raise ConfigurationError(
                f"{self.heads} heads do not divide the width {self.width}",
                where="Decoder.heads",
                hint=f"change `heads` or `width` (such as width={-(-self.width // self.heads) * self.heads}), "
                "or give `head_width`",
            )
        if self.heads % self.num_kv_heads:
            raise ConfigurationError(
                f"{self.kv_heads} key-value heads do not divide {self.heads} heads",
                where="Decoder.kv_heads",
                hint=f"choose `kv_heads` among {[n for n in range(1, self.heads + 1) if self.heads % n == 0]}",
            )
        if self.head_size % 2:
            raise ConfigurationError(
                f"a head of {self.head_size} cannot be rotated by RoPE, which turns pairs",
                where="Decoder.head_width",
                hint="make `head_width` (or `width / heads`) even",
            )
        if self.qk_norm and self.qkv_bias:
            raise ConfigurationError(
                "no known architecture has both `qk_norm` and `qkv_bias`, so the model could not be exported",
                where="Decoder.qkv_bias",
                hint="set one of them to False",
            )
        return self

    @property
    def num_kv_heads(self) -> int:
        """Key and value heads, default resolved."""
        return self.kv_heads or self.heads

    @property
    def head_size(self) -> int:
        """Size of one head, default resolved."""
        return self.head_width or self.width // self.heads

    @property
    def mlp_size(self) -> int:
        """Inner size of SwiGLU, default resolved."""
        return self.mlp_width or -(-self.width * 8 // (3 * 64)) * 64

    @property
    def vocabulary(self) -> int:
        """Rows of the embedding; raises ConfigurationError while they are open."""
        if self.vocab_size is None:
            raise ConfigurationError(
                "the vocabulary of the model is not known yet",
                where="Decoder.vocab_size",
                hint="give `vocab_size`, or take it from the data with `with_data`",
            )
        return self.vocab_size

    def with_data(self, *, vocab_size: int, context: int) -> "Decoder":
        """Return a copy with what was left open filled from the data.

        Raises ConfigurationError where the data have ids that the model lacks, or another context.
        """
        if self.vocab_size is not None and self.vocab_size < vocab_size:
            raise ConfigurationError(
                f"the data have {vocab_size:,} token ids, the model has {self.vocab_size:,}",
                where="Decoder.vocab_size",
                hint=f"leave `vocab_size` out, or give at least {vocab_size}",
            )
        if self.context is not None and self.context != context:
            raise ConfigurationError(
                f"the data are packed to sequences of {context} tokens, the model expects {self.context}",
                where="Decoder.context",
                hint="leave `context` out, or pack the data again",
            )
        return self.model_copy(update={"vocab_size": self.vocab_size or vocab_size, "context": context})
