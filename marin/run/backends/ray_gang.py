"""Gangs on Ray: one raw actor a rank in a placement group, and a board that carries beats and commands.

A rank's function runs on its actor's main thread (signal handlers need it), so no other method of that actor can be
called meanwhile: a thread of the rank reports to the board, and the attempt reads the board. No actor is detached or
restarted by Ray, and none holds state that the store does not have.
"""

import contextlib
import faulthandler
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import ray
from ray import exceptions
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from marin.graph.context import Rendezvous
from marin.run.failure import Failure, explain, lost
from marin.run.gang import Form, Formation, News
from marin.run.order import GangOrder, unpack
from marin.run.placement import Bundle, describe, rank_bundle
from marin.run.rank import RANK_HINT, RankEnd, RankMember, Seat, run_rank
from marin.run.retry import Cause

REPORT_SECONDS = 0.5
DUMP_SECONDS = 4 * REPORT_SECONDS
GONE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Place:
    """Where an actor found itself once it had imported its function."""

    node: str
    gpus: tuple[str, ...]
    pid: int


class Board:
    """Actor without resources: the last report of each rank, and the commands to all of them."""

    def __init__(self) -> None:
        self._reports: dict[int, tuple[tuple[str, int] | None, bool]] = {}
        self._commands: list[str] = []

    def report(self, rank: int, beaten: tuple[str, int] | None, stopping: bool, seen: int) -> list[str]:
        """Note where a rank is; return the commands after the first `seen`."""
        self._reports[rank] = (beaten, stopping)
        return self._commands[seen:]

    def take(self) -> dict[int, tuple[tuple[str, int] | None, bool]]:
        """Return the reports since the last call."""
        reports, self._reports = self._reports, {}
        return reports

    def command(self, name: str) -> None:
        """Pass `stop` or `dump` to every rank at its next report."""
        self._commands.append(name)


class RankActor:
    """Actor of one rank: imports the function, perhaps hosts the rendezvous, runs the function."""

    def __init__(self, order: GangOrder) -> None:
        self._order = order
        self._hosted: Rendezvous | None = None

    def ready(self) -> Place | Failure:
        """Import what the gang runs; the barrier before ranks are handed out."""
        try:
            self._fn, self._rendezvous, self._config = unpack(self._order.call)
        except Exception as error:  # noqa: BLE001  the boundary: importing user code may raise anything
            return explain(error, hint=RANK_HINT)
        gpus = tuple(str(gpu) for gpu in ray.get_gpu_ids())
        return Place(_node_address(), gpus, os.getpid())

    def host(self) -> str | Failure:
        """Open the rendezvous, keep it, and return its address; on rank 0 only."""
        try:
            hosted: Rendezvous = self._rendezvous()
        except Exception as error:  # noqa: BLE001  the boundary, as in `ready`
            return explain(error, hint=RANK_HINT)
        self._hosted = hosted
        return hosted.address

    def run(self, seat: Seat, node_gpus: tuple[str, ...], board: Any) -> RankEnd:  # Any: actor handle
        """Run the function on the main thread while a thread reports to the board."""
        if node_gpus:  # all of the node's ranks see all of its devices, so that LOCAL_RANK names one
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(node_gpus)
        done = threading.Event()

        def started(member: RankMember) -> None:
            threading.Thread(target=_carry, args=(member, board, done), name="marin-beats", daemon=True).start()

        try:
            call = (self._fn, self._config)
            return run_rank(self._order, seat, call=call, hosted=self._hosted, own_process=True, started=started)
        finally:
            done.set()


def _node_address() -> str:
    address: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
    return address


def _carry(member: RankMember, board: Any, done: threading.Event) -> None:  # Any: actor handle
    """Report a rank to the board until it ends; obey what comes back."""
    seen = 0
    while not done.is_set():
        try:
            commands = ray.get(board.report.remote(member.rank, member.beaten, member.stopping, seen), timeout=10)
        except (exceptions.RayError, TimeoutError):
            return  # the board went with its node: the attempt sees that and ends this rank
        seen += len(commands)
        if "stop" in commands:
            member.stop.set()
        if "dump" in commands:
            faulthandler.dump_traceback(file=2, all_threads=True)
        done.wait(REPORT_SECONDS)


def forming(order: GangOrder, emit: Callable[..., None]) -> Form:
    """Return what reserves, starts, seats and runs the ranks of one generation, and kills them at the end."""

    @contextlib.contextmanager
    def form(generation: int) -> Iterator[Formation]:
        bundle = rank_bundle(order.resources)
        group = placement_group([bundle or {"CPU": 0.001}] * order.num_ranks, strategy="PACK")
        actors: list[Any] = []
        board = ray.remote(num_cpus=0, max_restarts=0)(Board).remote()
        try:
            _wait_for_place(group, order, bundle, emit)
            actors += [_actor(order, bundle, group, index) for index in range(order.num_ranks)]
            formation = _seat(actors, board, generation)
            yield formation
        finally:
            for actor in [*actors, board]:
                ray.kill(actor, no_restart=True)
            _confirm_gone(actors)
            remove_placement_group(group)

    return form


def _wait_for_place(group: Any, order: GangOrder, bundle: Bundle, emit: Callable[..., None]) -> None:
    told = False
    while not group.wait(timeout_seconds=1 if told else 2):
        if not told:
            free: dict[str, float] = ray.available_resources()  # type: ignore[no-untyped-call]
            words = describe({key: free.get(key, 0) for key in ("CPU", "GPU")})
            detail = f"waiting for {order.num_ranks} x {describe(bundle)}: free are {words}"
            emit("state", state="waiting", detail=detail)
            told = True


def _actor(order: GangOrder, bundle: Bundle, group: Any, index: int) -> Any:  # Any: actor handle
    """Start one rank's actor in its own fresh process, with threads for all of its CPUs."""
    inherited = dict(ray.get_runtime_context().runtime_env.get("env_vars", {}))
    threads = str(max(1, int(order.resources.cpus)))
    return (
        ray.remote(RankActor)
        .options(
            num_cpus=bundle.get("CPU", 0),
            num_gpus=bundle.get("GPU", 0) or None,
            memory=bundle.get("memory", 0) or None,
            max_restarts=0,
            max_task_retries=0,
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index),
            runtime_env={"env_vars": {**inherited, "OMP_NUM_THREADS": threads}},
        )
        .remote(order)
    )


def _seat(actors: Sequence[Any], board: Any, generation: int) -> Formation:
    """Wait until every actor has imported its function, number them by node, and start them."""
    places = [_answer(actor.ready.remote()) for actor in actors]
    for rank, place in enumerate(places):
        if isinstance(place, Failure):
            return StillBorn(rank, place, len(actors))
    seated = sorted(zip(places, actors, strict=True), key=lambda pair: (pair[0].node, pair[0].gpus, pair[0].pid))
    address = _answer(seated[0][1].host.remote())
    if isinstance(address, Failure):
        return StillBorn(0, address, len(actors))
    runs: dict[Any, int] = {}
    for node_rank, (_, group) in enumerate(groupby(seated, key=lambda pair: pair[0].node)):
        members = list(group)
        node_gpus = tuple(gpu for place, _ in members for gpu in place.gpus)
        for local_rank, (_, actor) in enumerate(members):
            seat = Seat(len(runs), len(actors), local_rank, node_rank, generation, address)
            runs[actor.run.remote(seat, node_gpus, board)] = seat.rank
    return RayFormation(runs, board)


def _answer(reference: Any) -> Any:  # Any: ray.ObjectRef; what its method returns
    try:
        return ray.get(reference)
    except exceptions.RayError as error:
        return _loss(error)


def _loss(error: exceptions.RayError) -> Failure:
    out_of_memory = isinstance(error, exceptions.OutOfMemoryError) or "out of memory" in str(error).lower()
    cause = Cause.OUT_OF_MEMORY if out_of_memory else Cause.LOST
    why = "was killed: its node ran out of memory" if out_of_memory else "was killed or crashed, or its node was lost"
    return lost(cause, f"a rank {why}", where="", hint=RANK_HINT)


def _confirm_gone(actors: Sequence[Any]) -> None:
    """Return once Ray reports every actor dead, so that no zombie holds a device when the next generation starts."""
    if actors:
        ray.wait([actor.ready.remote() for actor in actors], num_returns=len(actors), timeout=GONE_SECONDS)


class StillBorn:
    """A formation that ended before its ranks ran."""

    def __init__(self, rank: int, failure: Failure, num_ranks: int) -> None:
        self._news = News(ends=(RankEnd(rank, time.time(), failure=failure),), alive=tuple(range(num_ranks)))

    def poll(self, timeout: float) -> News:
        return self._news

    def stop(self) -> None:
        """Nothing runs."""

    def dump_stacks(self) -> None:
        """Nothing runs."""


class RayFormation:
    """Running ranks: their ends come from Ray, their beats from the board."""

    def __init__(self, runs: dict[Any, int], board: Any) -> None:
        self._runs = runs
        self._num_ranks = len(runs)
        self._board = board

    def poll(self, timeout: float) -> News:
        ready, _ = ray.wait(list(self._runs), timeout=timeout)
        ends = tuple(self._end(reference) for reference in ready)
        reports = self._take()
        beats = tuple((rank, *beaten) for rank, (beaten, _) in reports.items() if beaten is not None)
        stopping = any(stopping for _, stopping in reports.values())
        return News(ends, beats, tuple(reports), stopping)

    def stop(self) -> None:
        self._board.command.remote("stop")

    def dump_stacks(self) -> None:
        self._board.command.remote("dump")
        time.sleep(DUMP_SECONDS)

    def _end(self, reference: Any) -> RankEnd:
        rank = self._runs.pop(reference)
        try:
            end: RankEnd = ray.get(reference)
        except exceptions.RayError as error:
            failure = _loss(error)
            message = failure.message.replace("a rank", f"rank {rank} of {self._num_ranks}", 1)
            return RankEnd(rank, time.time(), failure=lost(failure.cause, message, where="", hint=RANK_HINT))
        return end

    def _take(self) -> dict[int, tuple[tuple[str, int] | None, bool]]:
        try:
            reports: dict[int, tuple[tuple[str, int] | None, bool]] = ray.get(self._board.take.remote(), timeout=10)
        except (exceptions.RayError, TimeoutError):
            return {}  # its node is lost; the ranks fall silent with it
        return reports
