"""The inline backend: attempts, shards and a gang of one run in this process, one after the other.

For tests and debuggers: exceptions stop in the user's own frames, prints reach the terminal, Ray is not imported.
"""

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from marin.base.errors import ConfigurationError, Interrupted
from marin.graph.context import Rendezvous
from marin.graph.resources import Resources
from marin.graph.step import Step
from marin.run.attempt import execute
from marin.run.backend import Ended
from marin.run.communication import LOOPBACK
from marin.run.formation import Formation, News, Site
from marin.run.order import GangOrder, GroupReport, Order, ShardGroup, unpack
from marin.run.preflight import Node
from marin.run.rank import RankMember, Seat, run_rank
from marin.run.shardpool import Pool
from marin.run.shardwork import run_group
from marin.store import StopWatch
from marin.store.stop import LOOK_SECONDS


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

    def preflight(self, steps: Sequence[Step[Any]], store: str) -> list[str]:
        """Nothing to compare: the only worker is this process."""
        return []

    def examine(self, store: str) -> list[Node]:
        """There are no nodes."""
        return []

    def submit(self, order: Order, step: Step[Any]) -> None:
        """Keep the order for the next `wait`."""
        self._orders.append((order, step))

    def waiting(self, has_begun: Callable[[Sequence[str]], Container[str]]) -> Mapping[str, str]:
        """No attempt waits for anything but this process."""
        return {}

    def wait(self, timeout: float) -> list[Ended]:
        """Run the oldest order to its end, however long it takes."""
        if not self._orders:
            return []
        order, step = self._orders.popleft()
        return [Ended(order.identity.attempt, report=execute(order, lambda: step, InlineWorkers()))]

    def end(self, attempt: str) -> None:
        """Forget an attempt that has not begun."""
        self._orders = deque(pair for pair in self._orders if pair[0].identity.attempt != attempt)

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

    def site(self, order: GangOrder) -> AbstractContextManager[Site]:
        """Return what runs the one rank in this process."""
        return contextlib.nullcontext(InlineSite(order))


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
        return [(group, run_group(group, own_process=False))]

    def why_waiting(self, seconds: float) -> str:
        """No group waits for anything but this process."""
        return ""

    def close(self) -> None:
        """Forget what has not begun."""
        self._groups.clear()


class InlineSite:
    """This process as the place of a gang of one: there is room, and no more."""

    held = 1

    def __init__(self, order: GangOrder) -> None:
        self._order = order

    def can_grow(self) -> bool:
        """One process is all there is."""
        return False

    def reserve(self, nodes: int, timeout: float) -> bool:
        """The process is here already."""
        return True

    def most(self) -> int:
        """One."""
        return 1

    def lack(self, nodes: int) -> str:
        """Nothing is ever waited for."""
        return ""

    @contextlib.contextmanager
    def form(self, generation: int) -> Iterator[Formation]:
        """Give the rank its seat; it runs once it is polled."""
        fn, rendezvous, config = unpack(self._order.call)
        hosted: Rendezvous = rendezvous()
        address = f"{LOOPBACK}{hosted.address}" if hosted.address.startswith(":") else hosted.address
        seat = Seat(0, 1, local_rank=0, node_rank=0, generation=generation, rendezvous=address)
        yield _OneRank(self._order, seat, (fn, config), hosted)


class _OneRank:
    """A formation whose only rank runs inside `poll`, while a thread watches whether the run is to stop."""

    def __init__(self, order: GangOrder, seat: Seat, call: tuple[Any, Any], hosted: Rendezvous) -> None:
        self._order, self._seat, self._call, self._hosted = order, seat, call, hosted
        self._watch = StopWatch(order.identity.store, order.identity.run)
        self._ended = threading.Event()

    def poll(self, timeout: float) -> News:
        def started(member: RankMember) -> None:
            threading.Thread(target=self._pass_on, args=(member,), name="marin-stop", daemon=True).start()

        try:
            end = run_rank(
                self._order,
                self._seat,
                call=self._call,
                hosted=self._hosted,
                own_process=False,
                started=started,
            )
        finally:
            self._ended.set()
        if end.stopped and end.failure is None:
            if self._watch.asked:
                raise Interrupted("stopped", hint="run the same command again to continue")
            raise KeyboardInterrupt  # the signal was meant for this process, not for a rank that could be re-formed
        return News(ends=(end,), alive=(0,))

    def _pass_on(self, member: RankMember) -> None:
        """Tell the rank when the run is asked to stop; nobody else can while it runs."""
        while not self._ended.wait(LOOK_SECONDS):
            if self._watch.asked:
                member.stop.set()
                return

    def title(self, rank: int) -> str:
        return self._seat.title

    def stop(self) -> None:
        """The rank has ended by the time anyone could ask."""

    def dump_stacks(self) -> None:
        """The rank has ended by the time anyone could ask."""
