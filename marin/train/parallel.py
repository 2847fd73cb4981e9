"""How the ranks of a run share its work and its memory: data, shards of the state, pieces of matrices. No torch here.

Invariant: it decides where a number is computed and kept, never which number is meant.
"""

from typing import Literal, NamedTuple

from pydantic import Field

from marin.base.config import Config
from marin.base.errors import ConfigurationError
from marin.model.config import Decoder


class Axes(NamedTuple):
    """Ranks along each axis; their product is the number of ranks. Neighbours share matrices, then shards."""

    replicate: int = 1
    shard: int = 1
    tensor: int = 1


class Parallel(Config):
    """What each rank holds; whatever is left over reads other data with a copy of the same weights.

    As it is, every rank holds everything (data parallel). `shard="all"` divides weights, gradients and optimiser among
    all ranks (FSDP), `shard=8` among each eight (HSDP: such groups are copies of each other). `tensor=2` also computes
    each matrix product of a layer in two parts, which read the same data.
    """

    shard: Literal["all"] | int = Field(default=1)
    """Ranks among which weights, gradients and optimiser are divided; they read different data."""
    tensor: int = Field(default=1, ge=1)
    """Ranks among which heads and the feed-forward layer's inner size are divided; they read the same data."""
    add_gradients: Literal["micro_batch", "step"] = "micro_batch"
    """When sharded gradients are added over ranks: `step` sends less, and holds a rank's own gradient whole."""

    def model_post_init(self, _: object) -> None:
        """Refuse a number of ranks below one."""
        if self.shard != "all" and self.shard < 1:
            raise ConfigurationError(
                f"a state cannot be divided among {self.shard} ranks",
                where="Parallel.shard",
                hint="give a number of ranks, or 'all'",
            )

    def axes(self, num_ranks: int) -> Axes:
        """Return the ranks along each axis; raises ConfigurationError if they do not make up `num_ranks`."""
        shard = max(1, num_ranks // self.tensor) if self.shard == "all" else self.shard
        if num_ranks % (shard * self.tensor):
            raise ConfigurationError(
                f"{num_ranks} ranks cannot be divided into groups of {shard * self.tensor} "
                f"(shard={self.shard!r} times tensor={self.tensor})",
                where="Train.parallel",
                hint="ask for a multiple of them, or give Parallel(shard='all') with a `tensor` that divides the ranks",
            )
        return Axes(num_ranks // (shard * self.tensor), shard, self.tensor)

    def check_model(self, model: Decoder) -> None:
        """Raise ConfigurationError if the model's matrices cannot be divided among `tensor` ranks."""
        if self.tensor == 1:
            return
        if model.family == "gpt2":
            raise ConfigurationError(
                "the matrices of a GPT-2 are not divided: one product makes queries, keys and values",
                where="Train.parallel.tensor",
                hint="leave `tensor` at 1 and shard instead: Parallel(shard='all')",
            )
        sizes = {"heads": model.heads, "kv_heads": model.num_kv_heads, "mlp_width": model.mlp_size}
        for name, size in sizes.items():
            if size % self.tensor:
                raise ConfigurationError(
                    f"`{name}` {size} of the model cannot be divided among {self.tensor} ranks",
                    where="Train.parallel.tensor",
                    hint=f"choose a `tensor` that divides {size}, and shard the rest with shard='all'",
                )
