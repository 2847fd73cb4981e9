"""What the engine asks of a place that runs attempts, and what an attempt asks of it in turn."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from marin.graph.resources import Resources
from marin.graph.step import Step
from marin.run.gang import Form
from marin.run.order import GangOrder, Order, Report
from marin.run.retry import Cause
from marin.run.shardpool import Pool


@dataclass(frozen=True, slots=True)
class Ended:
    """An attempt that ended: with the worker's own report, or by a `cause` that left none."""

    attempt: str
    report: Report | None = None
    cause: Cause | None = None
    message: str = ""


class Backend(Protocol):
    """Runs attempts somewhere. `start` comes first and only once something has to run."""

    @property
    def width(self) -> int:
        """How many attempts may be in flight at once."""

    def start(self, code_folders: Sequence[str], run: str) -> None:
        """Reach or start the workers, who find first-party modules in these folders. Raises ClusterError."""

    def check(self, name: str, step: Step[Any]) -> None:
        """Raise ClusterError if no worker could ever hold the step, naming what there is."""

    def submit(self, order: Order, step: Step[Any]) -> None:
        """Queue an attempt."""

    def wait(self, timeout: float) -> list[Ended]:
        """Return the attempts that ended within `timeout` seconds."""

    def stop(self) -> None:
        """End whatever runs, at once."""

    def close(self) -> None:
        """Release the workers; a backend that was never started does nothing."""


class Workers(Protocol):
    """What an attempt can do beyond its own process."""

    @property
    def own_process(self) -> bool:
        """Whether the attempt has its process to itself."""

    def pool(self, resources: Resources) -> Pool:
        """Return a pool for shards, each asking for these resources."""

    def former(self, order: GangOrder, emit: Callable[..., None]) -> Form:
        """Return what forms the gang, once per generation."""


Capture = Callable[[str], AbstractContextManager[Any]]
