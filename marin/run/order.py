"""Orders and reports: the small values that cross between driver, workers and ranks.

Invariant: only URLs, digests, small JSON and pickles by module reference cross; no data, no code by value. Pickles
live for one message and are never stored.
"""

import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from marin.base.errors import ConfigurationError
from marin.graph.files import FileRef, Shard
from marin.graph.recipe import Accepted
from marin.graph.resources import Resources
from marin.run.failure import Failure
from marin.run.retry import Cause
from marin.store import Producer


@dataclass(frozen=True, slots=True)
class ParentKey:
    """Where a parent's artifact is found: the field that holds it, its step name and fingerprint."""

    path: str
    step_name: str
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Identity:
    """Which attempt of which step in which run and store; every event and record carries it."""

    store: str
    run: str
    name: str
    step_name: str
    fingerprint: str
    attempt: str
    read_from: tuple[str, ...] = ()
    """URLs of the upstream stores."""

    @property
    def event_fields(self) -> dict[str, str]:
        """What each event of this attempt says besides its own fields."""
        return {"step": self.step_name, "name": self.name, "fingerprint": self.fingerprint, "attempt": self.attempt}


@dataclass(frozen=True, slots=True)
class Order:
    """All that a worker needs to make one attempt of one step, beside the step itself."""

    identity: Identity
    recipe: str
    """The recipe fingerprint, for the manifest."""
    parents: tuple[ParentKey, ...]
    pins: tuple[FileRef, ...]
    resources: Resources
    epoch: int
    producer: Producer
    source: str | None = None
    """Digest of the step's source, as the driver has it."""
    accepted: Accepted = field(default_factory=dict)
    """What was blessed, as the plan saw it."""
    replaces: str | None = None
    """The attempt whose result makes way for this one's: its step's source has drifted."""
    place: str | None = None
    """The object storage at which the worker also publishes what it commits."""


@dataclass(frozen=True, slots=True)
class Report:
    """How an attempt ended: committed (`failure` is None) or failed."""

    attempt: str
    failure: Failure | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    shards: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    """Since it began, without what it waited for a place."""


@dataclass(frozen=True, slots=True)
class ShardGroup:
    """Shards that one worker runs one after the other, each committed on its own."""

    identity: Identity
    call: bytes
    """Pickle of (step class, function, configuration)."""
    shards: tuple[tuple[str, Shard], ...]
    """(shard fingerprint, input shard)."""
    elsewhere: bool = False
    """Whether it must go to a worker that has not run these shards: they have failed on another one."""


@dataclass(frozen=True, slots=True)
class ShardReport:
    """What came of one shard: the committed shard, or a failure."""

    fingerprint: str
    shard: Shard | None = None
    failure: Failure | None = None
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class GroupReport:
    """What came of a group; `cause` is set when its worker was lost or cut off, and `shards` are then empty."""

    shards: tuple[ShardReport, ...] = ()
    """Fewer than the group has when the worker was told to stop."""
    printed: str = ""
    worker: str = ""
    """The host and process that ran it."""
    stopped: bool = False
    cause: Cause | None = None
    message: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True)
class GangOrder:
    """All that a gang needs: what its members call, how many they are, and where they log."""

    identity: Identity
    call: bytes
    """Pickle of (function, rendezvous, configuration)."""
    num_ranks: int
    resources: Resources
    folder: str
    """URL of the attempt's folder, for `rank-N.log`."""
    checkpoints: str


def pack(value: object, *, where: str) -> bytes:
    """Return the pickle of a call; raises ConfigurationError for a function that no worker could import."""
    try:
        return pickle.dumps(value)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ConfigurationError(
            f"cannot be sent to a worker: {error}",
            where=where,
            hint="use functions and classes at the top of an importable module; no lambda, no local function",
        ) from error


def unpack(data: bytes) -> Any:  # Any: whatever this run itself packed
    """Return what `pack` packed."""
    return pickle.loads(data)
