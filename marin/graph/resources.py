"""Resources: where and how wide a step runs. Placement, never identity."""

from typing import Self

from pydantic import Field, model_validator

from marin.base.config import Config
from marin.base.errors import ConfigurationError
from marin.base.units import parse_size


class Resources(Config):
    """What one attempt of a step asks of the cluster, and how often it may be tried again."""

    cpus: float = Field(default=1, ge=0)
    """CPU cores; for a gang: per rank."""
    gpus: int = Field(default=0, ge=0)
    """Devices per node."""
    nodes: int = Field(default=1, ge=1)
    """Distinct nodes that a gang is spread over."""
    min_nodes: int | None = Field(default=None, ge=1)
    """Nodes that are enough to go on with while others are gone; None: all of them."""
    shrink_after: float = Field(default=60, gt=0)
    """Seconds that a gang waits for all of its nodes before it goes on with fewer."""
    ranks: int | None = Field(default=None, ge=1)
    """Members of a gang without GPUs, over all nodes; None: one a node. With GPUs there is one a device."""
    memory_bytes: int | None = Field(default=None, ge=1)
    retries: int = Field(default=3, ge=0)
    """Attempts after a worker was lost; an exception of the user's code is not retried."""
    hang_after: float = Field(default=60, gt=0)
    """Seconds that a rank of a gang may stand still; 20 of its steps if those are longer, 10 times as long at first."""
    timeout: float | None = Field(default=None, gt=0)
    """Seconds after which an attempt is stopped and has failed."""

    @model_validator(mode="after")
    def _check_width(self) -> Self:
        if self.min_nodes is not None and self.min_nodes > self.nodes:
            raise ConfigurationError(
                f"min_nodes={self.min_nodes} is more than nodes={self.nodes}",
                where="Resources.min_nodes",
                hint=f"give .on(nodes={self.min_nodes}) or more, or a smaller min_nodes",
            )
        if not self.gpus and self.ranks is not None and self.ranks % self.nodes:
            raise ConfigurationError(
                f"{self.ranks} ranks cannot be divided evenly over {self.nodes} nodes",
                where="Resources.ranks",
                hint=f"give ranks={self.nodes * max(1, self.ranks // self.nodes)}, or other nodes",
            )
        return self

    @property
    def ranks_per_node(self) -> int:
        """Members of a gang on each of its nodes: one per GPU, otherwise its share of `ranks`."""
        return self.gpus or (self.ranks or self.nodes) // self.nodes

    @property
    def num_ranks(self) -> int:
        """Members of a gang on all of its nodes."""
        return self.ranks_per_node * self.nodes

    @property
    def least_nodes(self) -> int:
        """The nodes without which a gang does not run."""
        return self.min_nodes or self.nodes

    def with_changes(self, *, memory: str | None = None, **changes: object) -> "Resources":
        """Return a copy with the changes that are not None; `memory` is text such as `"700 GB"`."""
        given = {name: value for name, value in changes.items() if value is not None}
        if memory is not None:
            given["memory_bytes"] = parse_size(memory)
        return Resources(**{**self.model_dump(), **given})
