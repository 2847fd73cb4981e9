"""The process from which ranks are forked: it has imported what they run, and does nothing else.

Importing costs seconds (torch alone 2-4), a fork milliseconds: so the ranks of a node import once, and a gang that
lost a rank steps again at once. Each rank is a new process in every forming: no state and no device of an earlier
generation lives on. Invariant: this process opens no device and starts no thread; where importing the user's module
did either, a rank is a fresh interpreter instead. When whoever asks for forks is gone, every rank is killed.
It knows neither Ray nor torch; `rankhost.py` starts it.
"""

import contextlib
import ctypes
import faulthandler
import gc
import os
import pickle
import random
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import Any, NoReturn

from marin import fs
from marin.base.json import Json
from marin.graph.context import Rendezvous
from marin.run.failure import Failure, explain
from marin.run.order import GangOrder, unpack
from marin.run.rank import RankEnd, RankMember, Seat, rank_hint, run_rank

DUMP_SIGNAL = signal.SIGUSR2
REPORT_SECONDS = 0.5
_PR_SET_CHILD_SUBREAPER = 36
Call = tuple[Callable[..., Json], Callable[[], Rendezvous], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Beat:
    """A rank's sign of life."""

    beaten: tuple[str, int] | None
    stopping: bool


@dataclass(frozen=True, slots=True)
class Seated:
    """The order to run as this member, with these variables."""

    seat: Seat
    environment: Mapping[str, str]


def serve(control: "Connection[Any, Any]") -> None:
    """Import what a gang runs, then fork a rank for each descriptor that comes, until nobody asks any more.

    Answers whether ranks are forks (False: each imports anew), or the failure of the import.
    """
    order: GangOrder = control.recv()
    call = _imported(order)
    if isinstance(call, Failure):
        control.send(call)
        return
    gc.freeze()  # shared pages stay shared: the collector leaves the imported objects alone
    forks = _may_fork()
    control.send(forks)
    children: set[int] = set()
    try:
        while True:
            wanted: int | None = control.recv()
            if wanted is None:
                descriptor = reduction.recv_handle(control)
                children.add(pid := _fork(control, descriptor, order, call if forks else None))
                control.send(pid)
            else:
                control.send(_end(wanted))
                children.discard(wanted)
    except EOFError:
        return
    finally:
        for pid in children:
            _kill(pid)


def _imported(order: GangOrder) -> Call | Failure:
    try:
        call: Call = unpack(order.call)
    except Exception as error:  # noqa: BLE001  the boundary: importing user code may raise anything
        return explain(error, hint="the module that holds the gang's function cannot be imported on this node")
    return call


def _may_fork() -> bool:
    """Whether a fork of this process is as good as a new one: Linux, no other thread, no device opened at import."""
    if sys.platform != "linux" or threading.active_count() > 1:
        return False
    opened = []
    for entry in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the descriptor of the listing itself
            opened.append(os.readlink(f"/proc/self/fd/{entry}"))
    return not any(path.startswith(("/dev/nvidia", "/dev/kfd", "/dev/dri")) for path in opened)


def _fork(control: "Connection[Any, Any]", descriptor: int, order: GangOrder, call: Call | None) -> int:
    pid = os.fork()
    if pid == 0:
        control.close()
        if call is None:
            os.set_inheritable(descriptor, True)
            os.execv(sys.executable, command(descriptor, "rank"))
        be_rank(Connection(descriptor), order, call)
    os.close(descriptor)
    with contextlib.suppress(ProcessLookupError, PermissionError):  # it has done so itself, or has ended
        os.setpgid(pid, pid)
    return pid


def _end(pid: int) -> int:
    """Kill a rank with all that it started, if it lives; return how it had ended, as `subprocess` counts."""
    _kill(pid)
    _, status = os.waitpid(pid, 0)
    with contextlib.suppress(ChildProcessError):  # what it had started is ours by now, and dying
        while True:
            os.waitpid(-pid, 0)
    return os.waitstatus_to_exitcode(status)


def _kill(pid: int) -> None:
    """Kill a rank and its process group. It is our child and was not waited for, so the number is still its own."""
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


def be_rank(connection: "Connection[Any, Any]", order: GangOrder, call: Call) -> NoReturn:
    """Live as one rank: perhaps open the rendezvous, take the seat, run the function, and stay until dismissed."""
    code = 1
    try:
        with contextlib.suppress(PermissionError):
            os.setpgid(0, 0)
        faulthandler.register(DUMP_SIGNAL, all_threads=True)
        random.seed()
        if numpy := sys.modules.get("numpy"):
            numpy.random.seed()  # forks would all draw what the first process would have drawn
        _run(connection, order, call)
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except EOFError:
        pass  # dismissed before it was seated
    except BaseException:  # noqa: BLE001  the end of a process: whatever it is, it is shown and becomes the exit code
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _run(connection: "Connection[Any, Any]", order: GangOrder, call: Call) -> None:
    fn, rendezvous, config = call
    hosted: Rendezvous | None = None
    message: Seated | None = connection.recv()
    if message is None:
        try:
            hosted = rendezvous()
        except Exception as error:  # noqa: BLE001  the boundary: the user's code may raise anything
            connection.send(explain(error, hint="the meeting point could not be opened on this node"))
            return
        connection.send(hosted.address)
        message = connection.recv()
    assert message is not None
    os.environ.update(message.environment)
    fs.be_patient()
    carrier = _Carrier(connection)
    end = run_rank(order, message.seat, call=(fn, config), hosted=hosted, own_process=True, started=carrier.start)
    carrier.finish(end, rank_hint(message.seat))


class _Carrier:
    """Carries a rank's beats to its host and the host's wishes to the rank, from a thread of its own."""

    def __init__(self, connection: "Connection[Any, Any]") -> None:
        self._connection = connection
        self._sending = threading.Lock()
        self._ended = False
        self._thread: threading.Thread | None = None

    def start(self, member: RankMember) -> None:
        """Begin to report."""
        self._thread = threading.Thread(target=self._carry, args=(member,), name="marin-beats", daemon=True)
        self._thread.start()

    def finish(self, end: RankEnd, hint: str) -> None:
        """Report the end, then keep the process, and with it an open rendezvous, until the host dismisses it."""
        try:
            message = reduction.ForkingPickler.dumps(end)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            end = RankEnd(end.rank, end.at, failure=explain(error, hint=f"return JSON from the function; {hint}"))
            message = reduction.ForkingPickler.dumps(end)
        with self._sending:
            self._ended = True
            self._connection.send_bytes(message)
        assert self._thread is not None
        self._thread.join()

    def _carry(self, member: RankMember) -> None:
        try:
            while True:
                if self._connection.poll(REPORT_SECONDS):
                    self._connection.recv()  # the only wish there is
                    member.stop.set()
                with self._sending:
                    if not self._ended:
                        self._connection.send(Beat(member.beaten, member.stopping))
        except (EOFError, OSError):  # the host is gone, or has dismissed this rank: nobody waits for it any more
            os._exit(0 if self._ended else 1)


def command(descriptor: int, role: str) -> list[str]:
    """Return the command line of a process that serves forks (`serve`), or is one rank (`rank`), on a descriptor."""
    # Not `-m`: what a process of that kind pickles would belong to its `__main__`.
    start = f"from marin.run.forkserver import main; main({descriptor}, {role!r})"
    return [sys.executable, "-P", "-c", start]


def main(descriptor: int, role: str) -> None:
    """Serve forks on a descriptor, or be the one rank that it belongs to."""
    connection: Connection[Any, Any] = Connection(descriptor)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal speaks to the driver
    if role == "serve":
        if sys.platform == "linux":  # orphans of a rank become children of this process, which can wait for their end
            ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        serve(connection)
    else:
        order: GangOrder = connection.recv()
        be_rank(connection, order, unpack(order.call))
