"""What is reached from the roots: pins, live and recent runs, leases, and what these were made from. Pure.

Invariant: in doubt a thing is reached. A run that lives may be reading whatever it has met, so what it touched counts
whether it says so or could have met it without having said so yet. Ages are differences of the store's own times.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from marin.store.gc.inventory import ArtifactFolder, Inventory
from marin.store.gc.runs import SILENT_SECONDS, Key, RunSeen
from marin.store.layout import PREFIX_HEX
from marin.store.manifest import Manifest
from marin.store.unlisted import Unlisted

PINNED = "pinned"
NAMED = "of a run named with --keep-runs"
LIVE = "of a live run"
RECENT = "of a recent run"
LEASED = "being made under a lease"
YOUNG = "recent"
NEEDED = "needed by what is kept"
WAITING = "unlisted, waits for its grace period"
UNREADABLE = "its manifest cannot be read"

TOLD_SECONDS = 300.0
"""A live run has told by then what it met: its events are stored every second, and one that cannot store is fenced."""


@dataclass(frozen=True)
class Policy:
    """What to keep, and for how long."""

    now: float
    """On the store's clock."""
    keep_seconds: float
    """Runs, results and attempts younger than that are kept."""
    grace_seconds: float
    """Time between unlisting and deleting."""
    keep_runs: frozenset[str] = frozenset()

    @property
    def window(self) -> float:
        """How long anything is kept that nobody needs: never shorter than the grace period."""
        return max(self.keep_seconds, self.grace_seconds)


@dataclass
class Reached:
    """What must stay, and why."""

    policy: Policy
    roots: dict[str, str] = field(default_factory=dict)
    """Run to the reason for which it is a root."""
    live: list[RunSeen] = field(default_factory=list)
    keys: dict[Key, str] = field(default_factory=dict)
    """Results that are kept, listed or to be listed again."""
    manifests: list[Manifest] = field(default_factory=list)
    """Those of `keys`, and earlier ones that a live run may still read."""
    read_live: set[Key] = field(default_factory=set)
    """Step and first 16 digits of what live runs have touched."""

    @property
    def files(self) -> set[str]:
        """Paths below the root of the files that these manifests name."""
        return {file.url for each in self.manifests for file in each.all_files}

    @property
    def shard_digests(self) -> set[str]:
        """Digests of the shards that these manifests name."""
        return {shard.digest for each in self.manifests for shard in each.shards}

    def settled(self, since: float, seconds: float) -> bool:
        """Whether so much time has passed since then that nobody can hold what was unreachable from then on.

        A live run that began earlier may have met it, and needs a while to say so. An unknown time is never long ago.
        """
        age = self.policy.now - since
        if not since or age < seconds:
            return False
        slack = min(60.0, self.policy.grace_seconds)
        return age >= TOLD_SECONDS or all(run.began > since + slack for run in self.live)

    def born_under_a_live_run(self, since: float) -> bool:
        """Whether something was made while a run that still lives went on."""
        return any(since >= run.began - 60.0 for run in self.live)


def is_live(run: RunSeen, policy: Policy) -> bool:
    """Whether a run may be at work now."""
    return not run.over and run.silent_for(policy.now) < max(policy.window, SILENT_SECONDS)


def root_runs(runs: Iterable[RunSeen], policy: Policy) -> dict[str, str]:
    """Return the runs whose results are kept, with the reason."""
    roots = {}
    for run in runs:
        if run.id in policy.keep_runs:
            roots[run.id] = NAMED
        elif is_live(run, policy):
            roots[run.id] = LIVE
        elif run.silent_for(policy.now) < policy.window:
            roots[run.id] = RECENT
    return roots


def reach(found: Inventory, policy: Policy) -> Reached:
    """Return what must stay."""
    reached = Reached(policy, root_runs(found.runs.values(), policy))
    reached.live = [run for run in found.runs.values() if is_live(run, policy)]
    reached.read_live = {short(*key) for run in reached.live for key in run.touched}
    nodes = _nodes(found)
    for key, reason in _root_keys(found, reached, nodes):
        reached.keys.setdefault(key, reason)
    waiting = list(reached.keys)
    while waiting:
        for parent in nodes[waiting.pop()].parents:
            key = (parent.step, parent.fingerprint)
            if key in nodes and key not in reached.keys:
                reached.keys[key] = NEEDED
                waiting.append(key)
    reached.manifests = [nodes[key] for key in reached.keys]
    reached.manifests += [
        earlier
        for earlier in _taken_away(found)
        if short(earlier.step, earlier.fingerprint) in reached.read_live  # it may have been met before
    ]
    return reached


def short(step: str, fingerprint: str) -> Key:
    """Return the key of a folder in `artifacts`."""
    return step, fingerprint[:PREFIX_HEX]


def newest_unlisted(found: Inventory) -> dict[Key, Unlisted]:
    """Return, of what is unlisted and has no successor, the newest of each fingerprint."""
    newest: dict[Key, Unlisted] = {}
    for record, _ in sorted(found.unlisted, key=lambda each: each[1]):
        owner = found.artifacts.get(short(*record.key))
        if owner is None or owner.listed is None:
            newest[record.key] = record
    return newest


def _nodes(found: Inventory) -> dict[Key, Manifest]:
    """Return the results there are, and those that could be listed again."""
    nodes = {key: record.manifest for key, record in newest_unlisted(found).items()}
    listed = [owner.listed.manifest for owner in found.artifacts.values() if owner.listed is not None]
    return nodes | {(each.step, each.fingerprint): each for each in listed}


def _taken_away(found: Inventory) -> Iterator[Manifest]:
    for owner in found.artifacts.values():
        yield from owner.former
    for record, _ in found.unlisted:
        yield record.manifest


def _root_keys(found: Inventory, reached: Reached, nodes: dict[Key, Manifest]) -> Iterator[tuple[Key, str]]:
    """Yield results that are roots, with the strongest reasons first."""
    yield from (((pin.step, pin.fingerprint), PINNED) for pin in found.pins if (pin.step, pin.fingerprint) in nodes)
    for reason in (NAMED, LIVE, RECENT):
        runs = {run for run, why in reached.roots.items() if why == reason}
        touched = {key for run in runs for key in found.runs[run].touched}
        yield from ((key, reason) for key, node in nodes.items() if node.run in runs or key in touched)
    for key in nodes:
        owner = found.artifacts.get(short(*key))
        if owner is not None and is_leased(owner, found, reached):
            yield key, LEASED
        if (
            owner is not None
            and owner.listed is not None
            and not reached.settled(owner.listed.modified, reached.policy.window)
        ):
            yield key, YOUNG


def is_leased(owner: ArtifactFolder, found: Inventory, reached: Reached) -> bool:
    """Whether somebody may be making this fingerprint now."""
    if owner.lease is None:
        return False
    if owner.lease.run in found.runs:
        return any(run.id == owner.lease.run for run in reached.live)
    # Taken by a run that began after the runs were read, or whose folder is gone.
    return not reached.settled(owner.lease.modified, max(reached.policy.window, SILENT_SECONDS))


def is_worked_on(owner: ArtifactFolder, found: Inventory, reached: Reached) -> bool:
    """Whether a run that is a root has tried to make this fingerprint, and may go on."""
    lease = owner.lease is not None and owner.lease.run in reached.roots
    return (
        lease or is_leased(owner, found, reached) or any(each.run in reached.roots for each in owner.attempts.values())
    )
