"""Gangs on Ray: one actor a node holds the node's room and starts a process for each rank there.

The actor (`NodeHost`) outlasts the forming of a gang, so that the next one starts from a warm fork server; a rank is
new each time. Its methods return at once or within half a second, so it always answers, whatever its ranks do. No
actor is detached or restarted by Ray, and none holds state that the store does not have.
"""

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray import exceptions
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from marin.run.backends.ray_placement import Reservation, Room, is_alive, lack, most_nodes
from marin.run.communication import LOOPBACK
from marin.run.failure import Failure, lost
from marin.run.forkserver import Beat
from marin.run.formation import Formation, News
from marin.run.order import GangOrder
from marin.run.placement import gang_demand
from marin.run.rank import RankEnd, Seat
from marin.run.rankhost import Bulletin, RankHost
from marin.run.retry import Cause

READY_SECONDS = 300.0
ANSWER_SECONDS = 60.0
GROW_SECONDS = 5.0
DUMP_SECONDS = 2.0
LATE_HINT = "look whether importing the gang's function takes that long there, and whether the node is healthy"


@dataclass(frozen=True, slots=True)
class Ready:
    """A host that has imported what its ranks run, and the devices that it holds for them."""

    address: str
    gpus: tuple[str, ...]


class NodeHost:
    """Actor of one node: the ranks of a gang there."""

    def __init__(self, order: GangOrder) -> None:
        self._host = RankHost(order, _node_address())
        self._host.start()

    def ready(self) -> Ready | Failure:
        """Wait for the import; the barrier before ranks are started anywhere."""
        failure = self._host.ready()
        return failure or Ready(self._host.address, tuple(str(gpu) for gpu in ray.get_gpu_ids()))

    def fork(self, number: int) -> None:
        """Start the processes of this node's ranks."""
        self._host.fork(number)

    def open(self) -> str | Failure:
        """Have the first rank here open the rendezvous; return its address."""
        return self._host.open()

    def seat(self, seats: Sequence[Seat], alone: bool) -> None:
        """Let the ranks run."""
        self._host.seat(seats, alone=alone)

    def poll(self) -> Bulletin:
        """Return what is new, within half a second."""
        return self._host.poll()

    def stop(self) -> None:
        """Ask every rank to checkpoint and stop."""
        self._host.stop()

    def dump_stacks(self) -> None:
        """Have every rank write its stacks to its log."""
        self._host.dump_stacks()

    def end(self) -> bool:
        """Return once no rank is left here: whether others can be started."""
        return self._host.end()


def _node_address() -> str:
    address: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
    return address


@dataclass(frozen=True, slots=True)
class Post:
    """The host on one node, and the ranks that are its."""

    room: Room
    actor: Any  # actor handle
    ranks: range
    num_ranks: int

    @property
    def title(self) -> str:
        """The ranks in words: `ranks 8-15 of 16 on node 10.0.0.2`."""
        first, last = self.ranks[0], self.ranks[-1]
        names = f"rank {first}" if first == last else f"ranks {first}-{last}"
        return f"{names} of {self.num_ranks} on node {self.room.node}"

    def seats(self, node_rank: int, generation: int, address: str) -> list[Seat]:
        """Return the seats of its ranks."""
        return [
            Seat(rank, self.num_ranks, local_rank, node_rank, generation, address, self.room.node)
            for local_rank, rank in enumerate(self.ranks)
        ]


class RaySite:
    """The cluster as a gang's policy sees it. To be closed at the end."""

    def __init__(self, order: GangOrder, *, ready_seconds: float = READY_SECONDS) -> None:
        self._order = order
        self._ready_seconds = ready_seconds
        self._reservation = Reservation(order.identity.attempt, order.resources)
        self._actors: dict[str, Any] = {}  # actor handles, by node
        self._broken = False

    @property
    def held(self) -> int:
        """On how many nodes room is held, all of them sound."""
        return 0 if self._broken else self._reservation.nodes

    def can_grow(self) -> bool:
        """Ask for the nodes that are missing; whether they are there by now."""
        return self._reservation.grow()

    def reserve(self, nodes: int, timeout: float) -> bool:
        """Hold room on exactly so many nodes; after the loss of a host it is asked for anew."""
        if self._broken or not self._reservation.adopt(nodes):
            self.close()
        return self._reservation.reserve(nodes, timeout)

    def most(self) -> int:
        """Return how many nodes could hold their share of the gang, if they were free."""
        return most_nodes(self._order.resources)

    def lack(self, nodes: int) -> str:
        """Return why there is no room yet."""
        return lack(self._order.resources)

    @contextlib.contextmanager
    def form(self, generation: int) -> Iterator[Formation]:
        """Start the ranks; at the end none is left on any node that answers, and the hosts stay for the next time."""
        posts = self._posts()
        try:
            failure = self._wait_until_ready(posts)
            runs = failure or _start_ranks(posts, generation)
            if isinstance(runs, Failure):
                self._broken = self._broken or runs.cause is not Cause.EXCEPTION
                yield StillBorn(runs, posts)
            else:
                yield RayFormation(posts, runs, self)
        finally:
            self._end_ranks()

    def close(self) -> None:
        """Give the room back; hosts and ranks end with it."""
        for actor in self._actors.values():
            ray.kill(actor, no_restart=True)
        self._actors.clear()
        self._reservation.release()
        self._broken = False

    def note_loss(self) -> None:
        """Trust the room no more: a host has died."""
        self._broken = True

    def _posts(self) -> list[Post]:
        """Return a host on each node, started where there is none, with its ranks: neighbours on one node."""
        rooms = self._reservation.rooms()
        num_ranks, first, posts = sum(room.num_ranks for room in rooms), 0, []
        for room in rooms:
            if room.node_id not in self._actors:
                self._actors[room.node_id] = _start_host(self._order, room)
            posts.append(Post(room, self._actors[room.node_id], range(first, first + room.num_ranks), num_ranks))
            first += room.num_ranks
        return posts

    def _wait_until_ready(self, posts: Sequence[Post]) -> Failure | None:
        """Return once every host has imported; or the failure, which names the ranks and the node, if one does not."""
        answers = {post.actor.ready.remote(): post for post in posts}
        ready, late = ray.wait(list(answers), num_returns=len(answers), timeout=self._ready_seconds)
        for reference in ready:
            post = answers[reference]
            answer: Ready | Failure = _answer(reference, post)
            if isinstance(answer, Failure):
                return answer
            expected = post.room.num_ranks if self._order.resources.gpus else 0
            if len(answer.gpus) < expected:
                message = f"{post.title} got {len(answer.gpus)} GPUs from Ray instead of {expected}"
                return lost(Cause.LOST, message, where="", hint=LATE_HINT)
        if late:
            message = f"{answers[late[0]].title} did not come up within {self._ready_seconds:g} s"
            return lost(Cause.LOST, message, where="", hint=LATE_HINT)
        return None

    def _end_ranks(self) -> None:
        ends = [actor.end.remote() for actor in self._actors.values()]
        ready, late = ray.wait(ends, num_returns=len(ends), timeout=ANSWER_SECONDS) if ends else ([], [])
        usable = [_answer(reference, None) is True for reference in ready]
        self._broken = self._broken or bool(late) or not all(usable)


def _start_host(order: GangOrder, room: Room) -> Any:  # Any: actor handle
    """Start the actor that holds one node's devices."""
    bundle = gang_demand(order.resources, 1).bundles[0]
    strategy = PlacementGroupSchedulingStrategy(room.group, placement_group_bundle_index=room.bundle)
    options = {"num_cpus": bundle.get("CPU", 0), "num_gpus": bundle.get("GPU", 0) or None, "max_restarts": 0}
    actor = ray.remote(NodeHost).options(**options, max_task_retries=0, scheduling_strategy=strategy)
    return actor.remote(order)


def _start_ranks(posts: Sequence[Post], generation: int) -> "dict[int, Seat] | Failure":
    """Start every rank's process, open the rendezvous in the first, then seat them all; return the seats."""
    for failure in _all([post.actor.fork.remote(post.room.num_ranks) for post in posts], posts):
        return failure
    address = _answer(posts[0].actor.open.remote(), posts[0])
    if isinstance(address, Failure):
        return address
    host, _, port = address.rpartition(":")
    alone = len(posts) == 1
    address = f"{host or (LOOPBACK if alone else posts[0].room.address)}:{port}"
    seats = [post.seats(node_rank, generation, address) for node_rank, post in enumerate(posts)]
    for failure in _all([post.actor.seat.remote(own, alone) for post, own in zip(posts, seats, strict=True)], posts):
        return failure
    return {seat.rank: seat for own in seats for seat in own}


def _all(references: Sequence[Any], posts: Sequence[Post]) -> Iterator[Failure]:
    """Wait for an answer of each host; yield what failed."""
    for reference, post in zip(references, posts, strict=True):
        answer = _answer(reference, post)
        if isinstance(answer, Failure):
            yield answer


def _answer(reference: Any, post: Post | None) -> Any:  # Any: ray.ObjectRef; what its method returns
    """Return what a host answers; a failure naming its ranks if it is gone or silent."""
    title = "a host" if post is None else post.title
    try:
        return ray.get(reference, timeout=ANSWER_SECONDS)
    except exceptions.RayError as error:
        return _loss(error, title, post)


def _loss(error: exceptions.RayError, title: str, post: Post | None) -> Failure:
    """Return why a host gives no answer any more."""
    if isinstance(error, exceptions.OutOfMemoryError) or "out of memory" in str(error).lower():
        return lost(Cause.OUT_OF_MEMORY, f"{title}: killed, as the node ran out of memory", where="", hint="")
    if isinstance(error, exceptions.GetTimeoutError):
        return lost(Cause.LOST, f"{title}: no answer within {ANSWER_SECONDS:g} s", where="", hint=LATE_HINT)
    if isinstance(error, exceptions.RayTaskError):
        return lost(Cause.LOST, f"{title}: {str(error).strip().splitlines()[-1]}", where="", hint="")
    why = "lost with their node" if post is not None and not is_alive(post.room.node_id) else "lost with their host"
    return lost(Cause.LOST, f"{title}: {why}", where="", hint="")


class StillBorn:
    """A formation that ended before its ranks ran."""

    def __init__(self, failure: Failure, posts: Sequence[Post]) -> None:
        ranks = range(posts[-1].num_ranks)
        self._posts = posts
        self._news = News(ends=(RankEnd(0, time.time(), failure=failure),), alive=tuple(ranks))

    def poll(self, timeout: float) -> News:
        return self._news

    def stop(self) -> None:
        """Nothing runs."""

    def dump_stacks(self) -> None:
        """Nothing runs."""

    def title(self, rank: int) -> str:
        return next(post.title for post in self._posts if rank in post.ranks)


class RayFormation:
    """Running ranks: each host tells of its own."""

    def __init__(self, posts: Sequence[Post], seats: dict[int, Seat], site: RaySite) -> None:
        self._seats = seats
        self._site = site
        self._left = dict.fromkeys(seats)
        self._polls = {post.actor.poll.remote(): post for post in posts}
        self._looked = time.monotonic()

    def poll(self, timeout: float) -> News:
        ready, _ = ray.wait(list(self._polls), timeout=timeout)
        if ready:  # others may have answered in the same moment
            ready, _ = ray.wait(list(self._polls), num_returns=len(self._polls), timeout=0)
        ends: list[RankEnd] = []
        beats: dict[int, Beat] = {}
        for reference in ready:
            post = self._polls.pop(reference)
            bulletin: Bulletin | Failure = _answer(reference, post)
            if isinstance(bulletin, Failure):
                ends += self._lost(post, bulletin)
                continue
            ends += bulletin.ends
            beats.update(bulletin.beats)
            self._polls[post.actor.poll.remote()] = post
        for end in ends:
            self._left.pop(end.rank, None)
        return News(
            tuple(ends),
            tuple((rank, *beat.beaten) for rank, beat in beats.items() if beat.beaten is not None),
            tuple(beats),
            any(beat.stopping for beat in beats.values()),
            self._has_room(),
        )

    def stop(self) -> None:
        for post in self._polls.values():
            post.actor.stop.remote()

    def dump_stacks(self) -> None:
        told = [post.actor.dump_stacks.remote() for post in self._polls.values()]
        ray.wait(told, num_returns=len(told), timeout=DUMP_SECONDS)
        time.sleep(0.2)  # for the ranks to write

    def title(self, rank: int) -> str:
        return self._seats[rank].title

    def _lost(self, post: Post, failure: Failure) -> list[RankEnd]:
        """Return the ends of the ranks that were a lost host's."""
        self._site.note_loss()
        return [RankEnd(rank, time.time(), failure=failure) for rank in post.ranks if rank in self._left]

    def _has_room(self) -> bool:
        now = time.monotonic()
        if now - self._looked < GROW_SECONDS:
            return False
        self._looked = now
        return self._site.can_grow()
