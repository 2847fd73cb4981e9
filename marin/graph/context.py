"""What a step sees while it runs: two Protocols that the engine implements and science only calls."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from marin.base.json import Json
from marin.graph.artifact import Artifact
from marin.graph.files import FileRef, Output, Shard
from marin.graph.resources import Resources
from marin.graph.step import Step

A = TypeVar("A", bound=Artifact)


@dataclass(frozen=True, slots=True)
class Mapped:
    """Results of a map, in the order of its input: iterate for the values, `.shards` for the committed shards."""

    shards: tuple[Shard, ...]

    def __iter__(self) -> Iterator[Any]:  # Any: the JSON each call returned
        return iter([shard.value for shard in self.shards])

    def __len__(self) -> int:
        return len(self.shards)


class Context(Protocol):
    """Handed to `Step.run`."""

    @property
    def output(self) -> Output:
        """This attempt's private folder."""

    @property
    def inputs(self) -> tuple[FileRef, ...]:
        """The external files that the step declared, as pinned when planned; `path` is relative."""

    @property
    def resources(self) -> Resources:
        """What the step was placed on."""

    @property
    def checkpoints(self) -> str:
        """URL of a folder of this fingerprint that outlives attempts."""

    def checkpoints_of(self, step: Step[Any]) -> str:
        """Return the URL of the checkpoints of a parent, to be read; they may be gone."""

    def load(self, step: Step[A]) -> A:
        """Return a parent's committed artifact."""

    def map(self, fn: Callable[..., Json], shards: Sequence[Shard], /, **config: object) -> Mapped:
        """Run a module-level function on each shard, each result committed and reused by content.

        `fn(shard, **config)` returns JSON; if it has a parameter `output` it also gets an Output for files.
        """

    def gang(
        self, fn: Callable[..., Json], /, *, rendezvous: Callable[[], "Rendezvous"], **config: object
    ) -> list[Json]:
        """Run `fn(member, **config)` on `resources.num_ranks` members that start and die together.

        `rendezvous()` runs on rank 0 and returns what keeps the meeting point open.
        Returns the members' results by rank.
        """

    def metric(self, **values: float) -> None:
        """Record numbers of this step (`step=`, `tokens=`, `loss=` ...)."""

    def progress(self, done: float, total: float, unit: str) -> None:
        """Say how far the step is."""


class Rendezvous(Protocol):
    """A meeting point that rank 0 holds open, such as a TCPStore."""

    @property
    def address(self) -> str:
        """`host:port` for the other members; `:port` on every interface, for the gang to name the host."""


class Member(Protocol):
    """One rank's view of its gang."""

    @property
    def rank(self) -> int: ...

    @property
    def world_size(self) -> int: ...

    @property
    def local_rank(self) -> int: ...

    @property
    def generation(self) -> int:
        """Number of this forming of the gang; grows with every restart."""

    @property
    def rendezvous(self) -> str:
        """`host:port` of the meeting point."""

    @property
    def hosted(self) -> Rendezvous | None:
        """The meeting point itself, on rank 0."""

    @property
    def stopping(self) -> bool:
        """True once the gang was asked to checkpoint and stop."""

    def may_commit(self) -> bool:
        """Whether this generation is still the current one; asked before a checkpoint's manifest is written."""

    def beat(self, phase: str, step: int) -> None:
        """Say what this rank does; a rank whose step does not move is suspected."""

    def metric(self, **values: float) -> None: ...

    def sample(self, *, step: int, prompt: str, completion: str) -> None:
        """Show what the model writes after a prompt, for people to read."""

    def progress(self, done: float, total: float, unit: str) -> None: ...
