"""Resources: where and how wide a step runs. Placement, never identity."""

from pydantic import Field

from marin.base.config import Config
from marin.base.units import parse_size


class Resources(Config):
    """What one attempt of a step asks of the cluster, and how often it may be tried again."""

    cpus: float = Field(default=1, ge=0)
    """CPU cores; for a gang: per rank."""
    gpus: int = Field(default=0, ge=0)
    """Devices per node."""
    nodes: int = Field(default=1, ge=1)
    ranks: int | None = Field(default=None, ge=1)
    """Members of a gang without GPUs; with GPUs there is one a device."""
    memory_bytes: int | None = Field(default=None, ge=1)
    retries: int = Field(default=3, ge=0)
    """Attempts after a worker was lost; an exception of the user's code is not retried."""
    timeout: float | None = Field(default=None, gt=0)
    """Seconds after which an attempt is stopped and has failed."""

    @property
    def num_ranks(self) -> int:
        """Members of a gang: one per GPU, otherwise `ranks`, otherwise one."""
        return self.gpus * self.nodes if self.gpus else self.ranks or 1

    def with_changes(self, *, memory: str | None = None, **changes: object) -> "Resources":
        """Return a copy with the changes that are not None; `memory` is text such as `"700 GB"`."""
        given = {name: value for name, value in changes.items() if value is not None}
        if memory is not None:
            given["memory_bytes"] = parse_size(memory)
        return Resources(**{**self.model_dump(), **given})
