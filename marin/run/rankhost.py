"""The ranks of one gang on one node, from outside: started, seated, listened to, ended.

It lives in a process that outlasts the forming of a gang, so that the next one starts from a warm fork server.
Invariant: `end` returns only when no process of the ranks is left, so a device is free before it is used again. It
knows neither Ray nor torch.
"""

import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import Pipe, reduction
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from marin import fs
from marin.base.errors import ClusterError, StoreError
from marin.run.communication import LOOPBACK, communication, decided, interface_of
from marin.run.failure import Failure, lost
from marin.run.forkserver import DUMP_SIGNAL, REPORT_SECONDS, Beat, Seated, command
from marin.run.order import GangOrder
from marin.run.rank import RankEnd, Seat, rank_hint
from marin.run.retry import Cause

log = logging.getLogger(__name__)

END_SECONDS = 30.0
FLIGHT_BYTES = 50_000_000


@dataclass(frozen=True, slots=True)
class Bulletin:
    """What a host knows of its ranks since the last time: who ended, and the last beat of each that gave a sign."""

    ends: tuple[RankEnd, ...] = ()
    beats: tuple[tuple[int, Beat], ...] = ()


@dataclass
class _Rank:
    """One rank's process, and what it was given."""

    pid: int
    connection: "Connection[Any, Any]"
    seat: Seat | None = None
    ended: bool = False
    """Its word, or its death, was heard."""
    reaped: bool = False


@dataclass
class RankHost:
    """Starts and ends the ranks of a gang on this machine, one forming after the other."""

    order: GangOrder
    address: str = LOOPBACK
    """The address under which other nodes reach this one."""
    _ranks: list[_Rank] = field(default_factory=list)
    _imported: bool | Failure | None = None
    """Whether ranks are forks, or why there can be none."""
    _oom_kills: int = 0

    def start(self) -> None:
        """Start the process that imports what the ranks run."""
        self._scratch = tempfile.mkdtemp(prefix="marin-ranks-")
        self._control, theirs = Pipe()
        threads = {"OMP_NUM_THREADS": str(max(1, int(self.order.resources.cpus)))}
        path = os.pathsep.join(entry for entry in sys.path if entry)
        self._server = subprocess.Popen(
            command(theirs.fileno(), "serve"),
            env={**os.environ, **threads, "PYTHONPATH": path},
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
        )
        theirs.close()
        self._control.send(self.order)

    def ready(self) -> Failure | None:
        """Wait for the import; return the failure if there was one."""
        if self._imported is None:
            self._imported = self._control.recv()
        return self._imported if isinstance(self._imported, Failure) else None

    def fork(self, number: int) -> None:
        """Start the processes of this node's ranks; they wait for their seats."""
        assert not self._ranks, "the last forming was not ended"
        self._oom_kills = _oom_kills()
        for _ in range(number):
            ours, theirs = Pipe()
            self._control.send(None)
            reduction.send_handle(self._control, theirs.fileno(), self._server.pid)
            theirs.close()
            self._ranks.append(_Rank(self._control.recv(), ours))
            if not self._imported:
                ours.send(self.order)

    def open(self) -> str | Failure:
        """Have this node's first rank open the rendezvous; return its address, whose host may be empty: this node."""
        first = self._ranks[0].connection
        first.send(None)
        try:
            answer: str | Failure = first.recv()
        except EOFError:
            return lost(Cause.LOST, "rank 0 died while it opened the meeting point", where="", hint="look at its log")
        return answer

    def seat(self, seats: Sequence[Seat], *, alone: bool) -> None:
        """Give each rank its seat; `alone` if all ranks of the gang are on this node."""
        given = decided(os.environ)
        interface = interface_of(LOOPBACK if alone else self.address)
        settings = communication(interface=interface, scratch=self._scratch, given=given)
        for rank, seat in zip(self._ranks, seats, strict=True):
            rank.seat = seat
            with suppress(BrokenPipeError, ConnectionResetError):  # it has died: `poll` will say so
                rank.connection.send(Seated(seat, settings))

    def poll(self, timeout: float = REPORT_SECONDS) -> Bulletin:
        """Wait for the end of a rank, at most `timeout` seconds; return what is new."""
        until = time.monotonic() + timeout
        ends: list[RankEnd] = []
        beats: dict[int, Beat] = {}
        while True:
            living = {rank.connection: rank for rank in self._ranks if not rank.ended}
            ready = wait([*living, self._control], max(0.0, until - time.monotonic()))
            if self._control in ready:  # it speaks only when asked: this is its end
                ends += self._server_lost()
                return Bulletin(tuple(ends), tuple(beats.items()))
            for connection in ready:
                assert isinstance(connection, Connection)
                rank = living[connection]
                assert rank.seat is not None
                message = self._heard(rank, rank.seat)
                if isinstance(message, RankEnd):
                    rank.ended = True
                    ends.append(message)
                else:
                    beats[rank.seat.rank] = message
            if ends or time.monotonic() >= until or not living:
                return Bulletin(tuple(ends), tuple(beats.items()))

    def stop(self) -> None:
        """Ask every rank to checkpoint and stop."""
        for rank in self._ranks:
            if not rank.ended:
                with suppress(BrokenPipeError, ConnectionResetError):
                    rank.connection.send("stop")

    def dump_stacks(self) -> None:
        """Have every rank write the stacks of its threads to its log; even one that is stuck in C code does."""
        for rank in self._ranks:
            if not rank.ended:
                with suppress(ProcessLookupError):
                    os.kill(rank.pid, DUMP_SIGNAL)

    def end(self) -> bool:
        """Kill every rank, and return once none is left: whether this host can start others.

        Raises ClusterError for a rank that the kernel does not end.
        """
        try:
            for rank in self._ranks:
                self._reap(rank)
        except (EOFError, BrokenPipeError, ConnectionResetError):
            for _ in self._server_lost():
                pass
        for rank in self._ranks:
            rank.connection.close()
        self._keep_flights()
        self._ranks.clear()
        return self._server.poll() is None

    def close(self) -> None:
        """End the ranks and the process that forks them."""
        self.end()
        self._control.close()
        self._server.wait(END_SECONDS)
        shutil.rmtree(self._scratch, ignore_errors=True)

    def _heard(self, rank: _Rank, seat: Seat) -> Beat | RankEnd:
        try:
            message: Beat | RankEnd = rank.connection.recv()
        except (EOFError, ConnectionResetError):
            return self._death(seat, self._reap(rank))
        return message

    def _reap(self, rank: _Rank) -> int:
        """Kill a rank and wait for it; return its exit code, negative for a signal."""
        if rank.reaped:  # its number may be another process's by now
            return 0
        self._control.send(rank.pid)
        if not self._control.poll(END_SECONDS):
            raise ClusterError(
                f"process {rank.pid} does not end {END_SECONDS:g} s after it was killed: it hangs in the kernel",
                where=f"node {self.address}",
                hint="look at the node's drivers and file systems; it may need a restart",
            )
        code: int = self._control.recv()
        rank.reaped = True
        return code

    def _death(self, seat: Seat, code: int) -> RankEnd:
        """Return the end of a rank that left no word: who ended it decides the cause."""
        cause, how = Cause.LOST, f"ended by itself with exit code {code}"
        if code < 0:
            name = signal.Signals(-code).name
            how = f"was killed by {name}"
            if name == "SIGKILL" and _oom_kills() > self._oom_kills:
                cause, how = Cause.OUT_OF_MEMORY, "was killed: its node ran out of memory"
            elif name == "SIGTERM":
                cause = Cause.PREEMPTED
        failure = lost(cause, f"{seat.title} {how}", where="", hint=rank_hint(seat))
        return RankEnd(seat.rank, time.time(), failure=failure)

    def _server_lost(self) -> Iterator[RankEnd]:
        """Kill the ranks whose parent is gone, as nobody else can, and wait until the system has buried them."""
        left = [rank for rank in self._ranks if not rank.reaped]
        for rank in left:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(rank.pid, signal.SIGKILL)
        until = time.monotonic() + END_SECONDS
        while any(_is_alive(rank.pid) for rank in left) and time.monotonic() < until:
            time.sleep(0.05)
        for rank in left:
            rank.reaped = True
            if not rank.ended and rank.seat is not None:
                rank.ended = True
                message = f"{rank.seat.title} was killed with the process that had forked it"
                failure = lost(Cause.LOST, message, where="", hint=rank_hint(rank.seat))
                yield RankEnd(rank.seat.rank, time.time(), failure=failure)

    def _keep_flights(self) -> None:
        """Move what the flight recorder wrote beside the ranks' logs: the last collectives before a hang."""
        generations = {rank.seat.generation for rank in self._ranks if rank.seat is not None}
        for file in sorted(Path(self._scratch).glob("flight-*")):
            name = f"{file.name}.g{max(generations, default=0)}"
            try:
                if file.stat().st_size <= FLIGHT_BYTES:
                    fs.replace(fs.join(self.order.folder, name), file.read_bytes())
            except StoreError as error:
                log.warning("%s is not kept (%s)", name, error)
            file.unlink()


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _oom_kills() -> int:
    """Return how many processes the kernel has killed for memory since it started; 0 where it does not say."""
    with suppress(OSError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
    return 0
