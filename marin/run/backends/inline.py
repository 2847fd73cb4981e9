"""The inline backend: attempts, shards and a gang of one run in this process, one after the other.

For tests and debuggers: exceptions stop in the user's own frames, prints reach the terminal, Ray is not imported.
"""

import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from marin.base.errors import ConfigurationError
from marin.graph.context import Rendezvous
from marin.graph.resources import Resources
from marin.graph.step import Step
from marin.run.attempt import execute
from marin.run.backend import Ended
from marin.run.gang import Form, Formation, News
from marin.run.order import GangOrder, GroupReport, Order, ShardGroup, unpack
from marin.run.rank import Seat, run_rank
from marin.run.shardpool import Pool
from marin.run.shardwork import run_group


class InlineBackend:
    """Runs one attempt at a time, when the engine waits for it."""

    width = 1

    def __init__(self) -> None:
        self._orders: deque[tuple[Order, Step[Any]]] = deque()

    def start(self, code_folders: Sequence[str], run: str) -> None:
        """Nothing to start: this process has the code already."""

    def check(self, name: str, step: Step[Any]) -> None:
        """Raise ConfigurationError for a gang of several ranks."""
        ranks = step.placed.resources.num_ranks
        if ranks > 1:
            raise ConfigurationError(
                f"step {name} wants {ranks} ranks, and the inline backend has one process",
                where=f"step {name}",
                hint='use backend="ray", or .on(ranks=1) without GPUs',
            )

    def submit(self, order: Order, step: Step[Any]) -> None:
        """Keep the order for the next `wait`."""
        self._orders.append((order, step))

    def wait(self, timeout: float) -> list[Ended]:
        """Run the oldest order to its end, however long it takes."""
        if not self._orders:
            return []
        order, step = self._orders.popleft()
        return [Ended(order.identity.attempt, report=execute(order, lambda: step, InlineWorkers()))]

    def stop(self) -> None:
        """Forget what has not begun."""
        self._orders.clear()

    def close(self) -> None:
        """Nothing to release."""


class InlineWorkers:
    """The calling process as the only worker."""

    own_process = False

    def pool(self, resources: Resources) -> Pool:
        """Return a pool that runs each group when waited for."""
        return InlinePool()

    def former(self, order: GangOrder, emit: Callable[..., None]) -> Form:
        """Return what runs the one rank in this process."""
        return lambda generation: _formed(order, generation)


class InlinePool:
    """Runs groups of shards in the calling process, in order."""

    width = 1

    def __init__(self) -> None:
        self._groups: deque[ShardGroup] = deque()

    def submit(self, group: ShardGroup) -> None:
        """Keep the group for the next `wait`."""
        self._groups.append(group)

    def wait(self, timeout: float) -> list[tuple[ShardGroup, GroupReport]]:
        """Run the oldest group to its end."""
        group = self._groups.popleft()
        return [(group, run_group(group))]

    def close(self) -> None:
        """Forget what has not begun."""
        self._groups.clear()


@contextlib.contextmanager
def _formed(order: GangOrder, generation: int) -> Iterator[Formation]:
    fn, rendezvous, config = unpack(order.call)
    hosted: Rendezvous = rendezvous()
    seat = Seat(0, 1, local_rank=0, node_rank=0, generation=generation, rendezvous=hosted.address)
    yield _OneRank(order, seat, (fn, config), hosted)


class _OneRank:
    """A formation whose only rank runs inside `poll`."""

    def __init__(self, order: GangOrder, seat: Seat, call: tuple[Any, Any], hosted: Rendezvous) -> None:
        self._order, self._seat, self._call, self._hosted = order, seat, call, hosted

    def poll(self, timeout: float) -> News:
        end = run_rank(
            self._order,
            self._seat,
            call=self._call,
            hosted=self._hosted,
            own_process=False,
            started=lambda member: None,
        )
        if end.stopped:  # the signal was meant for this process, not for a rank that could be re-formed
            raise KeyboardInterrupt
        return News(ends=(end,), alive=(0,))

    def stop(self) -> None:
        """The rank has ended by the time anyone could ask."""

    def dump_stacks(self) -> None:
        """The rank has ended by the time anyone could ask."""
