"""One rank of a gang: its view (`Member`), its environment, its log, and how it ended, as a value.

It runs in a process of its own (or in this one, for a gang of one) and knows neither Ray nor torch: the torchrun
variables are set before the user's function is called.
"""

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from marin import fs
from marin.base.json import Json
from marin.graph.context import Rendezvous
from marin.run.failure import Failure, explain
from marin.run.fence import Fence
from marin.run.log import copied, redirected
from marin.run.order import GangOrder
from marin.store import EventWriter


@dataclass(frozen=True, slots=True)
class Seat:
    """Where one rank sits in one forming of its gang."""

    rank: int
    world_size: int
    local_rank: int
    node_rank: int
    generation: int
    rendezvous: str
    node: str = ""
    """Its node in words."""

    @property
    def title(self) -> str:
        """Which rank, of how many, where: `rank 1 of 16 on node 10.0.0.2`."""
        return f"rank {self.rank} of {self.world_size}" + (f" on node {self.node}" if self.node else "")

    @property
    def environment(self) -> dict[str, str]:
        """The variables that torchrun would set."""
        host, _, port = self.rendezvous.rpartition(":")
        return {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.world_size),
            "LOCAL_RANK": str(self.local_rank),
            "NODE_RANK": str(self.node_rank),
            "MASTER_ADDR": host,
            "MASTER_PORT": port,
        }


@dataclass(frozen=True, slots=True)
class RankEnd:
    """How a rank ended: with a value, with a failure, or because it was asked to stop."""

    rank: int
    at: float
    value: Json = None
    failure: Failure | None = None
    stopped: bool = False


class RankMember:
    """The `Member` that a gang's function is given."""

    def __init__(self, seat: Seat, *, fence: Fence, hosted: Rendezvous | None, emit: Callable[..., None]) -> None:
        self.seat = seat
        self.stop = threading.Event()
        self.beaten: tuple[str, int] | None = None
        self._fence = fence
        self._hosted = hosted
        self._emit = emit
        self._heard = False

    @property
    def rank(self) -> int:
        return self.seat.rank

    @property
    def world_size(self) -> int:
        return self.seat.world_size

    @property
    def local_rank(self) -> int:
        return self.seat.local_rank

    @property
    def generation(self) -> int:
        return self.seat.generation

    @property
    def rendezvous(self) -> str:
        return self.seat.rendezvous

    @property
    def hosted(self) -> Rendezvous | None:
        return self._hosted

    @property
    def stopping(self) -> bool:
        self._heard = self._heard or self.stop.is_set()
        return self._heard

    @property
    def heard(self) -> bool:
        """Whether the function was told, when it asked, that it should stop."""
        return self._heard

    def may_commit(self) -> bool:
        """Whether no later generation was formed."""
        return self._fence.is_current(self.generation)

    def beat(self, phase: str, step: int) -> None:
        """Note where this rank is; a thread of its host carries it on."""
        self.beaten = (phase, step)

    def metric(self, **values: float) -> None:
        """Record numbers of this rank."""
        self._emit("metric", values=values)

    def sample(self, *, step: int, prompt: str, completion: str) -> None:
        """Record what the model wrote after a prompt."""
        self._emit("sample", sample={"step": step, "prompt": prompt, "completion": completion})

    def progress(self, done: float, total: float, unit: str) -> None:
        """Say how far the step is."""
        self._emit("progress", done=done, total=total, unit=unit)


def rank_hint(seat: Seat) -> str:
    """Return where to look on after a rank has failed."""
    return f"{seat.title}: its log is rank-{seat.rank}.log of the attempt"


def run_rank(
    order: GangOrder,
    seat: Seat,
    *,
    call: tuple[Callable[..., Json], Mapping[str, Any]],
    hosted: Rendezvous | None,
    own_process: bool,
    started: Callable[[RankMember], None],
) -> RankEnd:
    """Run the gang's function in this rank and report how it ended; `started` is told the member first."""
    fn, config = call
    identity = order.identity
    writer = EventWriter(identity.store, identity.run, f"{identity.attempt}-g{seat.generation}-r{seat.rank}")

    def emit(kind: str, **fields: Any) -> None:  # Any: JSON of the event
        writer.emit(kind, **identity.event_fields, rank=seat.rank, **fields)

    member = RankMember(seat, fence=Fence(order.checkpoints), hosted=hosted, emit=emit)
    log = (redirected if own_process else copied)(fs.join(order.folder, f"rank-{seat.rank}.log"))
    try:
        with log as text, _environment(seat.environment), _sigterm(member.stop):
            where = {"node": seat.node} if seat.node else {}
            emit("placement", pid=os.getpid(), host=socket.gethostname(), generation=seat.generation, **where)
            writer.flush()
            started(member)
            try:
                value = fn(member, **config)
                return RankEnd(seat.rank, time.time(), value=value, stopped=member.heard)
            except Exception as error:  # noqa: BLE001  the boundary: the other ranks must be told, whatever it is
                failure = explain(error, hint=rank_hint(seat))
                text.write(failure.text)
                return RankEnd(seat.rank, time.time(), failure=failure, stopped=member.heard)
    finally:
        writer.close()


@contextlib.contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _sigterm(stop: threading.Event) -> Iterator[None]:
    """A spot notice or `kill` asks the rank to stop at its next step boundary."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda *_: stop.set())
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
