"""What the gang's policy asks of a backend: room on nodes, and one forming of the gang after the other.

Also how wide a gang becomes: pure decisions over a `Site` and a clock, which know no Ray and no torch.
"""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from marin.base.errors import Interrupted
from marin.graph.resources import Resources
from marin.run.rank import RankEnd

RESERVE_SECONDS = 2.0
SAY_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class News:
    """What a poll of a formation brought: ranks that ended, and the last beat of each rank that answered."""

    ends: tuple[RankEnd, ...] = ()
    beats: tuple[tuple[int, str, int], ...] = ()
    """(rank, phase, step)."""
    alive: tuple[int, ...] = ()
    """Ranks that answered since the last poll."""
    stopping: bool = False
    """Some rank was told to stop, by a signal."""
    room: bool = False
    """The gang is narrower than it should be, and its full width could be placed now."""


class Formation(Protocol):
    """One forming of a gang, with every rank running."""

    def poll(self, timeout: float) -> News:
        """Wait at most `timeout` seconds for news."""

    def stop(self) -> None:
        """Ask every rank to checkpoint and stop."""

    def dump_stacks(self) -> None:
        """Have every rank write the stacks of its threads to its log."""

    def title(self, rank: int) -> str:
        """Return which rank of how many this is, and on which node."""


class Site(Protocol):
    """Where a gang is formed; it holds the room between two formings."""

    @property
    def held(self) -> int:
        """On how many nodes room is held, none of them lost."""

    def can_grow(self) -> bool:
        """Whether there is room now on all the nodes that a narrow gang lacks."""

    def reserve(self, nodes: int, timeout: float) -> bool:
        """Whether room on exactly so many nodes is held now; waits at most `timeout` seconds. All or nothing."""

    def most(self) -> int:
        """Return how many nodes there are that could hold their share, if they were free."""

    def lack(self, nodes: int) -> str:
        """Return in words why there is no room on so many nodes."""

    def form(self, generation: int) -> AbstractContextManager[Formation]:
        """Start the ranks on the room that is held; at the end of the block none is left."""


def hold(
    site: Site,
    resources: Resources,
    *,
    emit: Callable[..., None],
    asked: Callable[[], bool],
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """Return on how many nodes room for the gang is held: on all, or after `shrink_after` on as many as there are.

    Waits as long as there is not even room on `min_nodes`. Raises Interrupted if the run is asked to stop meanwhile.
    """
    if resources.least_nodes <= site.held < resources.nodes and not site.can_grow():
        return site.held  # narrow already, and whole: nothing is gained by waiting
    since = clock()
    said, said_at = "", since - SAY_SECONDS
    while not site.reserve(resources.nodes, RESERVE_SECONDS):
        if asked():
            raise Interrupted("stopped while the gang waited for room", hint="run the same command again to continue")
        if clock() - since >= resources.shrink_after:
            for nodes in range(min(resources.nodes - 1, site.most()), resources.least_nodes - 1, -1):
                if site.reserve(nodes, RESERVE_SECONDS):
                    return nodes
        words = site.lack(resources.nodes)
        if words != said and clock() - said_at >= SAY_SECONDS:
            emit("state", state="waiting", detail=words)
            said, said_at = words, clock()
    return resources.nodes
