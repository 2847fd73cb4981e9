"""What the engine asks of a place that runs attempts, and what an attempt asks of it in turn."""

from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from marin.graph.resources import Resources
from marin.graph.step import Step
from marin.run.formation import Site
from marin.run.order import GangOrder, Order, Report
from marin.run.preflight import Node
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

    def preflight(self, steps: Sequence[Step[Any]], store: str) -> list[str]:
        """Compare the workers' machines with this one; return warnings. Raises ClusterError for what cannot work."""

    def examine(self, store: str) -> list[Node]:
        """Return what every node says of itself, for whoever wants to see it."""

    def submit(self, order: Order, step: Step[Any]) -> None:
        """Queue an attempt."""

    def waiting(self, has_begun: Callable[[Sequence[str]], Container[str]]) -> Mapping[str, str]:
        """Return, for attempts that have long not begun, what each waits for, if it is to be said now.

        `has_begun` tells which of some attempts have left a sign of life.
        """

    def wait(self, timeout: float) -> list[Ended]:
        """Return the attempts that ended within `timeout` seconds."""

    def end(self, attempt: str) -> None:
        """End one attempt, at once; nothing more is heard of it."""

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

    def site(self, order: GangOrder) -> AbstractContextManager[Site]:
        """Return where the gang is formed; at the end of the block its room is given back."""


Capture = Callable[[str], AbstractContextManager[Any]]
