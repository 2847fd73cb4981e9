"""Configuration of the decoder: shapes only, no torch.

Invariant: a `Decoder` that exists can be built, once its vocabulary is known. What is left open (`vocab_size`,
`context`) is taken from the data. It must not know torch, so that planning a pipeline stays light.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from marin.base.config import Config, ElideIf
from marin.base.errors import ConfigurationError


class RopeScaling(Config):
    """Stretches RoPE to a longer context the way Llama 3.1 does (rope type `llama3`)."""

    factor: float = Field(gt=1, allow_inf_nan=False)
    low_frequency_factor: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    high_frequency_factor: float = Field(default=4.0, gt=0, allow_inf_nan=False)
    original_context: int = Field(default=8192, ge=1)

    @model_validator(mode="after")
    def _check_factors(self) -> Self:
        if self.high_frequency_factor <= self.low_frequency_factor:
            raise ConfigurationError(
                f"the high-frequency factor {self.high_frequency_factor:g} is not above the low one "
                f"{self.low_frequency_factor:g}",
                where="RopeScaling.high_frequency_factor",
                hint="Llama 3 has low_frequency_factor=1 and high_frequency_factor=4",
            )
        return self


class Decoder(Config):
    """Decoder-only transformer: RMSNorm, RoPE, grouped-query attention, SwiGLU.

    Without `qk_norm` and `qkv_bias` it is a Llama, with `qkv_bias` a Qwen2, with `qk_norm` a Qwen3. The family `gpt2`
    is the baseline: learned positions, LayerNorm, GELU, a bias in every projection, no dropout.
    """

    family: Annotated[Literal["llama", "gpt2"], ElideIf("llama")] = "llama"
    """Which kind of block; Qwen2 and Qwen3 are of the family `llama`."""

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
    """Inner size of SwiGLU; 8/3 of `width`, rounded up to a multiple of 64, by default. GPT-2: 4 of `width`."""
    vocab_size: int | None = Field(default=None, ge=1)
    """Rows of the embedding; the vocabulary of the data by default."""
    context: int | None = Field(default=None, ge=1)
    """Tokens of a sequence; the context of the data by default."""
    rope_theta: float = Field(default=10_000.0, gt=1, allow_inf_nan=False)
    rope_scaling: RopeScaling | None = None
    norm_eps: float = Field(default=1e-5, gt=0, allow_inf_nan=False)
    tied: bool = True
    """Whether the output layer is the embedding."""
    qk_norm: bool = False
    """RMSNorm over each head of queries and keys (Qwen3)."""
    qkv_bias: bool = False
    """Bias of the query, key and value projections (Qwen2)."""
    init_std: float = Field(default=0.02, gt=0, allow_inf_nan=False)
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
        if self.head_size % 2 and self.family == "llama":
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
        if self.family == "gpt2":
            self._check_gpt2()
        return self

    def _check_gpt2(self) -> None:
        """Refuse what a GPT-2 does not have, so that it could not be exported."""
        impossible = {
            "kv_heads": self.num_kv_heads != self.heads,
            "head_width": self.head_size * self.heads != self.width,
            "rope_theta": self.rope_theta != type(self).model_fields["rope_theta"].default,
            "rope_scaling": self.rope_scaling is not None,
            "qk_norm": self.qk_norm,
            "qkv_bias": self.qkv_bias,
        }
        for name, wrong in impossible.items():
            if wrong:
                raise ConfigurationError(
                    f"a GPT-2 has no such `{name}`",
                    where=f"Decoder.{name}",
                    hint=f"leave `{name}` out, or take family='llama'",
                )

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
        """Inner size of the feed-forward layer, default resolved."""
        if self.family == "gpt2":
            return self.mlp_width or 4 * self.width
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
