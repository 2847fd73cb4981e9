"""What goes: the verdict on a store, from what lies there and what is reached. Pure.

Invariant: only files are named that nothing reached, nothing waiting and no record about to be unlisted refers to. A
result goes in two steps, first its record and, once the grace period is over, its files; what was never listed, or is
certainly not any more, goes at once when it is old enough.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from marin.fs.aged import Aged
from marin.graph.files import Shard
from marin.store import unlisted
from marin.store.gc import reach
from marin.store.gc.inventory import ArtifactFolder, AttemptFolder, Inventory, ShardFolder, UnlistedShards, decode_shard
from marin.store.gc.reach import Policy, Reached, is_worked_on, newest_unlisted, short
from marin.store.gc.runs import SILENT_SECONDS
from marin.store.unlisted import Unlisted

UNNEEDED = "no pin, no recent run and nothing kept needs it"
EXPIRED = "unlisted, its grace period is over"
LEFT = "left by an attempt whose result is not used"
DONE = "checkpoints of a finished step"
ABANDONED = "checkpoints that no recent run goes on from"
OLD_RUN = "an old run that made nothing kept"
EMPTIED = "records of a fingerprint without a result"
MADE_IT = "made what is about to go"
PARTIAL = "half a file of a killed writer"
LOST = "a shard's attempt that another was faster than"


@dataclass(frozen=True)
class Candidate:
    """One thing that would go."""

    kind: str
    """artifact, attempt, checkpoints, shard, run, records or partial."""
    path: str
    """Below the store's root."""
    bytes: int
    reason: str
    step: str = ""


@dataclass(frozen=True)
class Garbage:
    """Files that may be deleted now."""

    path: str
    """The folder that they lie in, below the store's root."""
    files: tuple[Aged, ...]
    owner: ArtifactFolder | None = None
    """Whose lease is taken first."""
    is_folder: bool = True
    """Whether the folder goes too, if nothing else is in it."""


@dataclass
class Verdict:
    """What becomes of everything in a store."""

    unlist: list[ArtifactFolder] = field(default_factory=list)
    relist: list[Unlisted] = field(default_factory=list)
    forget: list[Unlisted] = field(default_factory=list)
    settle: list[Unlisted] = field(default_factory=list)
    """Records whose unlisting was cut short; it is done again."""
    stale: list[Unlisted] = field(default_factory=list)
    """Records of manifests that stand."""
    unlist_shards: list[ShardFolder] = field(default_factory=list)
    relist_shards: dict[str, bytes] = field(default_factory=dict)
    settle_shards: list[UnlistedShards] = field(default_factory=list)
    forget_shards: list[UnlistedShards] = field(default_factory=list)
    stale_claims: list[Aged] = field(default_factory=list)
    """Claims of processes that were killed, and those that are about nothing any more."""
    garbage: list[Garbage] = field(default_factory=list)
    """What is deleted now."""
    leased: list[Garbage] = field(default_factory=list)
    """What is deleted now, each under the lease of its fingerprint."""
    candidates: list[Candidate] = field(default_factory=list)
    kept: Counter[str] = field(default_factory=Counter)

    @property
    def bytes(self) -> int:
        """Bytes of all candidates."""
        return sum(each.bytes for each in self.candidates)


def judge(found: Inventory, reached: Reached) -> Verdict:
    """Return what becomes of everything."""
    return _Judge(found, reached).judge()


class _Judge:
    """Goes over a store once: results and shards first, for what waits still needs its files."""

    def __init__(self, found: Inventory, reached: Reached) -> None:
        self.found = found
        self.reached = reached
        self.window = reached.policy.window
        self.verdict = Verdict()
        self.needed = reached.files
        self.waiting_files: set[str] = set()
        """Files of what is, or is about to be, unlisted and not yet given up."""
        self.waiting: dict[tuple[str, str], list[Unlisted]] = {}
        """By step and first 16 digits, like the next two."""
        self.forgotten: dict[tuple[str, str], list[Unlisted]] = {}
        self.relisted: dict[tuple[str, str], list[Unlisted]] = {}
        self.kept_shard_files: set[str] = set()
        self.going_shards: dict[str, str] = {}
        """Shards that are about to be unlisted, or wait, with the reason."""

    def judge(self) -> Verdict:
        self._unlisted()
        self.forgotten, self.relisted = _by_folder(self.verdict.forget), _by_folder(self.verdict.relist)
        self._listed()
        self._shards()
        for owner in self.found.artifacts.values():
            self._artifact(owner)
        self._runs()
        self._strays()
        return self.verdict

    def _unlisted(self) -> None:
        """Decide on what was unlisted earlier."""
        newest = newest_unlisted(self.found)
        for record, modified in self.found.unlisted:
            owner = self.found.artifacts.get(short(*record.key))
            if owner is not None and owner.listed is not None and owner.listed.text == record.text:
                self.verdict.stale.append(record)
            elif record.key in self.reached.keys and newest.get(record.key) == record:
                self.verdict.relist.append(record)
                self.verdict.kept[self.reached.keys[record.key]] += 1
            elif not record.complete:
                self.verdict.settle.append(record)
                self._waits(record)
            elif self._may_be_read(record) or not self.reached.settled(modified, self.reached.policy.grace_seconds):
                self._waits(record)
            else:
                self.verdict.forget.append(record)

        about = {record.url for record, _ in self.found.unlisted}
        for claim in self.found.claims:
            is_old = self.reached.settled(claim.modified, SILENT_SECONDS)
            if is_old or unlisted.record_of_claim(claim.url) not in about:
                self.verdict.stale_claims.append(claim)

    def _may_be_read(self, record: Unlisted) -> bool:
        return short(*record.key) in self.reached.read_live

    def _waits(self, record: Unlisted) -> None:
        self.waiting.setdefault(short(*record.key), []).append(record)
        self.waiting_files |= {file.url for file in record.manifest.all_files}
        self.verdict.kept[reach.WAITING] += 1

    def _listed(self) -> None:
        for owner in self.found.artifacts.values():
            if owner.listed is None:
                continue
            committed = owner.listed.manifest
            reason = self.reached.keys.get((committed.step, committed.fingerprint))
            if reason is None:
                self.verdict.unlist.append(owner)
                self.waiting_files |= {file.url for file in committed.all_files}
            else:
                self.verdict.kept[reason] += 1

    def _shards(self) -> None:
        digests = self.reached.shard_digests
        reused = {key for run, keys in self.found.reused.items() if run in self.reached.roots for key in keys}
        for folder in self.found.shards.values():
            if folder.shard is None:
                continue
            reason = self._shard_kept(folder, folder.shard, digests, reused)
            if reason is None:
                self.verdict.unlist_shards.append(folder)
                self.going_shards[folder.fingerprint] = UNNEEDED
                self.waiting_files |= {file.url for file in folder.shard.files}
            else:
                self.verdict.kept[reason] += 1
                self.kept_shard_files |= {file.url for file in folder.shard.files}
        self.needed |= self.kept_shard_files  # not before: what one shard needs says nothing about another
        for batch in self.found.unlisted_shards:
            self._unlisted_shards(batch, digests, reused)
        for folder in self.found.shards.values():
            self._shard_files(folder)

    def _shard_kept(
        self, folder: ShardFolder, shard: Shard, digests: set[str], reused: set[str], *, is_listed: bool = True
    ) -> str | None:
        """Return why a shard's record is kept; None when nothing needs it."""
        if any(file.url in self.needed for file in shard.files) or shard.digest in digests:
            return reach.NEEDED
        if folder.fingerprint in reused:
            return reach.RECENT
        for attempt in folder.attempts.values():
            if attempt.run in self.reached.roots and any(_is_in(attempt, file.url) for file in shard.files):
                return self.reached.roots[attempt.run]
        young = not self.reached.settled(folder.modified, self.window)
        if is_listed and (young or self.reached.born_under_a_live_run(folder.modified)):
            return reach.YOUNG
        return None

    def _unlisted_shards(self, batch: UnlistedShards, digests: set[str], reused: set[str]) -> None:
        """Decide on a record of shards that were unlisted together."""
        over = batch.complete and self.reached.settled(batch.modified, self.reached.policy.grace_seconds)
        (self.verdict.forget_shards if over else self.verdict.settle_shards if not batch.complete else []).append(batch)
        for key, text in batch.texts.items():
            folder = self.found.shards.get(key)
            shard = decode_shard(text, key, where=batch.path)
            if folder is None or shard is None or folder.shard is not None:
                continue  # its files are gone, or it has been made anew
            there = {file.path for file in folder.files}
            is_whole = all(file.url in there for file in shard.files)
            if is_whole and self._shard_kept(folder, shard, digests, reused, is_listed=False):
                self.verdict.relist_shards[key] = text
                self.needed |= {file.url for file in shard.files}
            elif not over:
                self.waiting_files |= {file.url for file in shard.files}
                self.verdict.kept[reach.WAITING] += 1
                self.going_shards[key] = reach.WAITING

    def _shard_files(self, folder: ShardFolder) -> None:
        """Decide on what lies in a shard's folder beside its record's own files."""
        gone: list[Aged] = []
        for attempt in folder.attempts.values():
            since = max([folder.modified, *(file.modified for file in attempt.files)])
            if self._stays(attempt) or not self.reached.settled(since, self.window):
                continue
            gone += attempt.files
        is_empty = folder.shard is None and folder.fingerprint not in self.verdict.relist_shards
        is_bare = is_empty and len(gone) == sum(len(attempt.files) for attempt in folder.attempts.values())
        if is_bare and self.reached.settled(_newest(folder.files), self.window):
            gone += folder.rest
        if gone:
            self.verdict.garbage.append(Garbage(folder.path, tuple(gone)))
            self._candidate("shard", folder.path, gone, EXPIRED if is_empty else LOST)
        if reason := self.going_shards.get(folder.fingerprint):
            at_once = {file.path for file in gone}
            self._candidate(
                "shard", folder.path, [f for f in self._free(folder.files) if f.path not in at_once], reason
            )

    def _artifact(self, owner: ArtifactFolder) -> None:
        """Decide on the folder of one fingerprint."""
        if owner.unreadable:
            self.verdict.kept[reach.UNREADABLE] += 1
            return
        waiting = self.waiting.get((owner.step, owner.prefix), [])
        forgotten = {each.manifest.attempt for each in self.forgotten.get(_key(owner), ())}
        winners = {each.manifest.attempt for each in [*waiting, *self.relisted.get(_key(owner), ())]}
        winners |= {owner.listed.manifest.attempt} if owner.listed is not None else set()
        self._shown(owner, waiting)
        left = 0
        for attempt in owner.attempts.values():
            if attempt.name in winners or self._stays(attempt) or not self._is_old(attempt, owner):
                left += 1
                continue
            self.verdict.garbage.append(Garbage(attempt.path, tuple(attempt.files)))
            if attempt.name in forgotten:
                self._candidate("artifact", owner.path, attempt.files, EXPIRED, owner.step)
            else:
                self._candidate("attempt", attempt.path, attempt.files, LEFT, owner.step)
        self._records(owner, is_bare=not (left or winners))

    def _is_old(self, attempt: AttemptFolder, owner: ArtifactFolder) -> bool:
        """Whether an attempt has been unreachable for long: so have its files, and what replaced it."""
        replaced = owner.listed.modified if owner.listed is not None else 0.0
        return self.reached.settled(max([replaced, *(file.modified for file in attempt.files)]), self.window)

    def _shown(self, owner: ArtifactFolder, waiting: list[Unlisted]) -> None:
        """List the result as a candidate while its files are still there."""
        going = []
        if owner.listed is not None and (owner.step, owner.listed.manifest.fingerprint) not in self.reached.keys:
            going.append((owner.listed.manifest.attempt, UNNEEDED))
        for attempt, reason in [*going, *((each.manifest.attempt, reach.WAITING) for each in waiting)]:
            folder = owner.attempts.get(attempt)
            files = self._free(folder.files) if folder is not None else []
            self._candidate("artifact", owner.path, files, reason, owner.step)

    def _records(self, owner: ArtifactFolder, *, is_bare: bool) -> None:
        """Decide on checkpoints, and on the records of a fingerprint that has nothing left."""
        if is_worked_on(owner, self.found, self.reached):
            return
        gone: list[Aged] = []
        busy = [*owner.checkpoints, *owner.leases]
        if owner.checkpoints and self.reached.settled(_newest(busy), self.window):
            gone += owner.checkpoints
            self._candidate(
                "checkpoints",
                f"{owner.path}/checkpoints",
                owner.checkpoints,
                DONE if owner.listed is not None else ABANDONED,
                owner.step,
            )
        rest = [*owner.rest, *owner.leases]
        is_bare = is_bare and len(gone) == len(owner.checkpoints)
        if is_bare and rest and self.reached.settled(_newest(owner.files), self.window):
            gone += rest
            self._candidate("records", owner.path, rest, EMPTIED, owner.step)
        if owner.left_lease is not None and owner.left_lease not in gone:
            gone.append(owner.left_lease)
        if gone:
            self.verdict.leased.append(Garbage(owner.path, tuple(gone), owner=owner))

    def _stays(self, attempt: AttemptFolder) -> bool:
        """Whether an attempt's folder is kept for what made it, or for what its files are needed for."""
        if attempt.run in self.reached.roots:
            return True
        return any(file.path in self.needed or file.path in self.waiting_files for file in attempt.files)

    def _runs(self) -> None:
        """Decide on runs: those that made what is kept or waits stay, with their events."""
        going = [each.manifest for group in self.waiting.values() for each in group]
        going += [owner.listed.manifest for owner in self.verdict.unlist if owner.listed is not None]
        reasons = {
            **{each.run: MADE_IT for each in going},
            **{each.run: reach.NEEDED for each in self.reached.manifests},
            **self.reached.roots,
        }
        for run in self.found.runs.values():
            if run.id in reasons:
                self.verdict.kept[reasons[run.id]] += 1
            else:
                self.verdict.garbage.append(Garbage(f"runs/{run.id}", tuple(run.files)))
                files = [file._replace(path=f"runs/{file.path}") for file in run.files]
                self._candidate("run", f"runs/{run.id}", files, OLD_RUN)

    def _strays(self) -> None:
        for file in self.found.strays:
            if self.reached.settled(file.modified, max(self.window, SILENT_SECONDS)):
                self.verdict.garbage.append(Garbage(file.path.rpartition("/")[0], (file,), is_folder=False))
                self._candidate("partial", file.path, [file], PARTIAL)

    def _free(self, files: Iterable[Aged]) -> list[Aged]:
        """Return the files that nothing kept needs."""
        return [file for file in files if file.path not in self.needed]

    def _candidate(self, kind: str, path: str, files: Iterable[Aged], reason: str, step: str = "") -> None:
        self.verdict.candidates.append(Candidate(kind, path, sum(file.size for file in files), reason, step))


def policy_of(now: float, *, days: float, grace: float, keep_runs: Iterable[str] = ()) -> Policy:
    """Return the policy that the options of `marin gc` ask for."""
    return Policy(now, days * 86_400, grace, frozenset(keep_runs))


def _by_folder(records: Iterable[Unlisted]) -> dict[tuple[str, str], list[Unlisted]]:
    found: dict[tuple[str, str], list[Unlisted]] = {}
    for each in records:
        found.setdefault(short(*each.key), []).append(each)
    return found


def _newest(files: Iterable[Aged]) -> float:
    return max((file.modified for file in files), default=0.0)


def _key(owner: ArtifactFolder) -> tuple[str, str]:
    return owner.step, owner.prefix


def _is_in(attempt: AttemptFolder, path: str) -> bool:
    prefix = attempt.path
    return path.startswith(f"{prefix}/")
