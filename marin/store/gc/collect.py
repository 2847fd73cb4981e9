"""Collecting garbage: the verdict carried out, in an order in which no reader loses a file and any kill is harmless.

Invariants: one collector works on a store at a time. A record is written before a listing goes, a result is given up
before its files are, and checkpoints go under the lease of their fingerprint. Single files are deleted, as they were
seen, never whole folders. Killed anywhere, the next collection ends where this one would have.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from marin import fs
from marin.base.errors import StoreError
from marin.fs.aged import Aged, delete_empty_folder, delete_empty_folders, list_aged
from marin.store import former_results, layout, manifest, records, unlisted
from marin.store.gc.inventory import COLLECTOR, ArtifactFolder, Inventory, epoch_of, take_inventory
from marin.store.gc.reach import Policy, Reached, reach, root_runs, short
from marin.store.gc.runs import Key, read_touched
from marin.store.gc.verdict import Garbage, Verdict, judge
from marin.store.heartbeat import Heartbeat
from marin.store.lease import TTL_SECONDS, Holder, Leases
from marin.store.pins import pins
from marin.store.presence import THREADS
from marin.store.run_id import new_run_id
from marin.store.store import Store
from marin.store.unlisted import Unlisted

log = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")

GRACE_SECONDS = 86_400.0
KEEP_DAYS = 7.0
SHARDS_A_RECORD = 1000
_POLL_SECONDS = 2.0

Progress = Callable[[str, int, int], None]
"""What is being done, how many of how many."""


@dataclass
class Collected:
    """What a collection did."""

    verdict: Verdict
    unlisted: int = 0
    relisted: int = 0
    deleted: int = 0
    """Files."""
    deleted_bytes: int = 0


class _Room(Store):
    """The collector's own corner of a store: one lease, of the whole store, beside a heartbeat."""

    def artifact_folder(self, step: str, fingerprint: str) -> str:
        return self.url


def survey(store: Store, policy: Policy) -> Verdict:
    """Return what would go and what would stay; writes nothing."""
    return judge(*_surveyed(store, policy))


def collect(
    store: Store,
    policy_at: Callable[[float], Policy],
    *,
    user: str = "unknown",
    progress: Progress = lambda what, done, total: None,
    pause: Callable[[float], object] = time.sleep,
) -> Collected:
    """Unlist what nothing needs, and delete what was unlisted a grace period ago or never listed.

    `policy_at` is given the store's own time. Raises StoreError while another collector works.
    """
    run = f"{COLLECTOR}{new_run_id()}"
    room = _Room(layout.gc_folder(store.url))
    heartbeat = Heartbeat(room, run)
    heartbeat.start()
    try:
        with _alone(room, run, user, pause):
            now = _beaten_at(room, run)
            verdict = judge(*_surveyed(store, policy_at(now)))
            return _Collector(store, run, user, heartbeat, progress).carry_out(verdict)
    finally:
        heartbeat.stop()
        for file in list_aged(layout.run_folder(room.url, run)):
            fs.delete(file.url)
        delete_empty_folders(room.url)


def _surveyed(store: Store, policy: Policy) -> tuple[Inventory, Reached]:
    found = take_inventory(store.url)
    roots = root_runs(found.runs.values(), policy)
    read_touched(store.url, [found.runs[run] for run in roots])
    return found, reach(found, policy)


def _beaten_at(room: Store, run: str) -> float:
    """Return the store's own time: that of the heartbeat just written; StoreError where it tells none."""
    beats = [file.modified for file in list_aged(layout.run_folder(room.url, run))]
    if not beats or not max(beats):
        raise StoreError(
            "this storage does not tell when a file was written, so nothing there can be called old",
            where=room.url,
            hint="without --apply, `marin gc` shows what nothing needs; `marin invalidate` takes single results away",
        )
    return max(beats)


@contextlib.contextmanager
def _alone(room: Store, run: str, user: str, pause: Callable[[float], object]) -> Iterator[None]:
    """Hold the lease of all collecting; wait for a holder that may be dead, as every waiter for a lease does."""
    leases = Leases(room, run, user=user)
    waited = 0.0
    while isinstance(taken := leases.acquire("", ""), Holder):
        if waited > TTL_SECONDS + 2 * _POLL_SECONDS:
            raise StoreError(
                f"another `marin gc` of {taken.user}@{taken.host} works on this store since {taken.since}",
                where=room.url,
                hint="wait until it is done, and run this again",
            )
        if not waited:
            log.warning(
                "waiting for another `marin gc` of %s@%s, at work since %s", taken.user, taken.host, taken.since
            )
        pause(_POLL_SECONDS)
        waited += _POLL_SECONDS
    try:
        yield
    finally:
        # Not given back but deleted, with those of earlier collectors: nothing of them need stay.
        files = list_aged(fs.join(room.url, "leases"))
        for file in sorted(files, key=lambda each: (epoch_of(each.path), each.path)):
            if epoch_of(file.path) <= taken.epoch:
                fs.delete(file.url)


class _Collector:
    """Carries out one verdict."""

    def __init__(self, store: Store, run: str, user: str, heartbeat: Heartbeat, progress: Progress) -> None:
        self._store = store
        self._root = store.url
        self._heartbeat = heartbeat
        self._progress = progress
        self._run = run
        self._user = user

    def carry_out(self, verdict: Verdict) -> Collected:
        """Do what the verdict says, in this order."""
        done = Collected(verdict)
        self._list_again(verdict, done)
        self._unlist(verdict, done)
        wanted = self._give_up(verdict)
        blocked = {"artifacts/{}/{}".format(*short(*record.key)) for record in wanted} | self._listed_by_hand(verdict)
        needed = {file.url for record in wanted for file in record.manifest.all_files}
        for what, garbage, act in (
            ("deleting", verdict.garbage, self._delete),
            ("deleting checkpoints", verdict.leased, self._delete_under_lease),
        ):
            going = [each for each in garbage if not _is_blocked(each, blocked, needed)]
            for files in self._each(what, going, act):
                done.deleted += len(files)
                done.deleted_bytes += sum(file.size for file in files)
        for batch in verdict.forget_shards if not wanted else ():
            fs.delete(fs.join(self._root, batch.path))
        for claim in verdict.stale_claims:
            fs.delete(claim.url)
        delete_empty_folders(layout.unlisted_folder(self._root))
        return done

    def _list_again(self, verdict: Verdict, done: Collected) -> None:
        for record in verdict.stale:
            fs.delete_unchanged(record.url, record.data)
        for record in verdict.relist:
            done.relisted += unlisted.recall(self._root, *record.key) is not None
        for key, text in verdict.relist_shards.items():
            done.relisted += fs.create(unlisted.shard_record_url(self._root, key), text)

    def _unlist(self, verdict: Verdict, done: Collected) -> None:
        listed = [(each.listed.manifest, each.listed.text) for each in verdict.unlist if each.listed is not None]
        listed += [(each.manifest, each.text) for each in verdict.settle]
        self._each("unlisting results", listed, lambda each: unlisted.unlist(self._root, *each))
        texts = {each.fingerprint: each.text for each in verdict.unlist_shards}
        keys = list(texts)
        for start in range(0, len(keys), SHARDS_A_RECORD):
            self._still_alone()
            batch = {key: texts[key] for key in keys[start : start + SHARDS_A_RECORD]}
            unlisted.unlist_shards(self._root, f"{self._run}-{start // SHARDS_A_RECORD}", batch)
            self._progress("unlisting shards", start + len(batch), len(keys))
        for cut_short in verdict.settle_shards:
            name = cut_short.path.rsplit("/", 1)[-1].removesuffix(".json")
            unlisted.unlist_shards(self._root, name, cut_short.texts)
        done.unlisted += len(listed) - len(verdict.settle) + len(keys)
        pinned = self._pinned()
        for committed, _ in listed:  # somebody may have pinned it meanwhile
            if (committed.step, committed.fingerprint) in pinned:
                done.relisted += unlisted.recall(self._root, committed.step, committed.fingerprint) is not None

    def _give_up(self, verdict: Verdict) -> list[Unlisted]:
        """Give results up whose grace period is over; return those that somebody wants after all."""
        pinned = self._pinned()

        def give_up(record: Unlisted) -> bool:
            return record.key not in pinned and unlisted.forget(record)

        given_up = self._each("giving up results", verdict.forget, give_up)
        return [record for record, gone in zip(verdict.forget, given_up, strict=True) if not gone]

    def _listed_by_hand(self, verdict: Verdict) -> set[str]:
        """Return the attempts whose manifest stands after all: its invalidation was undone while the store was read."""
        attempts = [each.path for each in verdict.garbage if each.path.startswith("artifacts/")]
        owners = {fs.join(self._root, path.rpartition("/attempts/")[0], "manifest.json") for path in attempts}
        stand = {}
        for url, text in fs.read_many(owners).items():
            listed = manifest.decode(text, where=url)
            stand[url[len(self._root) + 1 :].rpartition("/")[0]] = listed.attempt if listed is not None else ""
        return {path for path in attempts if stand.get(path.rpartition("/attempts/")[0]) == path.rpartition("/")[2]}

    def _delete(self, garbage: Garbage) -> Sequence[Aged]:
        """Delete files and return them; none of an attempt whose result was listed again by hand."""
        taken_away = [file for file in garbage.files if file.path.rsplit("/", 1)[-1] in former_results.NAMES]
        for file in taken_away:
            fs.delete(file.url)
        if taken_away and self._is_listed(garbage):
            return ()
        for file in garbage.files:
            fs.delete(file.url)
        if garbage.is_folder:
            delete_empty_folders(fs.join(self._root, garbage.path))
        return garbage.files

    def _is_listed(self, garbage: Garbage) -> bool:
        """Whether the manifest that stands names this attempt: its invalidation was undone meanwhile."""
        owner, _, attempt = garbage.path.rpartition("/attempts/")
        url = fs.join(self._root, owner, "manifest.json")
        text = fs.read_many([url]).get(url)
        listed = manifest.decode(text, where=url) if text is not None else None
        return listed is not None and listed.attempt == attempt

    def _delete_under_lease(self, garbage: Garbage) -> Sequence[Aged]:
        """Delete checkpoints and records of a fingerprint and return them; none when anybody works on it again."""
        owner = garbage.owner
        assert owner is not None
        # Who is dead was judged by the store's own times, so a lease is taken over at once.
        leases = Leases(self._store, self._run, user=self._user, ttl=0.0)
        lease = leases.acquire(owner.step, self._fingerprint_of(owner))
        if isinstance(lease, Holder):
            return ()
        if lease.epoch != owner.epoch + 1:  # somebody has taken it since the store was looked at
            fs.delete(lease.url)
            return ()
        for file in sorted(garbage.files, key=_order):
            fs.delete(file.url)
        folder = fs.join(self._root, owner.path)
        for name in ("attempts", "checkpoints"):
            delete_empty_folders(fs.join(folder, name))
        fs.delete(lease.url)  # the last: whoever waits for it finds nothing, and begins anew
        delete_empty_folders(fs.join(folder, "leases"))
        delete_empty_folder(folder)
        return garbage.files

    def _fingerprint_of(self, owner: ArtifactFolder) -> str:
        """Return the whole fingerprint, which others compare in a lease; its start if no record has it."""
        if owner.listed is not None:
            return owner.listed.manifest.fingerprint
        recipe = fs.join(self._root, owner.path, "recipe.json")
        kinds = {recipe: "recipe", **{file.url: "lease" for file in owner.leases if "released" not in file.path}}
        for url, data in fs.read_many(kinds).items():
            record = records.decode(data, kinds[url], where=url) or {}
            if str(record.get("fingerprint", "")).startswith(owner.prefix):
                return str(record["fingerprint"])
        return owner.prefix

    def _pinned(self) -> set[Key]:
        return {(pin.step, pin.fingerprint) for pin in pins(self._root)}

    def _each(self, what: str, items: Sequence[T], act: Callable[[T], R]) -> list[R]:
        """Return `act` of each, several at a time; the first error stops those that have not begun."""
        done: list[R] = []
        with ThreadPoolExecutor(THREADS) as pool:
            try:
                for result in pool.map(act, items):
                    self._still_alone()
                    done.append(result)
                    self._progress(what, len(done), len(items))
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        return done

    def _still_alone(self) -> None:
        if self._heartbeat.fenced:
            raise StoreError(
                "`marin gc` could not reach its store for a minute and has stopped, as another may take over",
                where=self._root,
                hint="run it again once the store answers: it goes on where it stopped",
            )


def _is_blocked(garbage: Garbage, folders: set[str], needed: set[str]) -> bool:
    inside = any(garbage.path == folder or garbage.path.startswith(f"{folder}/") for folder in folders)
    return inside or (bool(needed) and any(file.path in needed for file in garbage.files))


def _order(file: Aged) -> tuple[int, int, str]:
    """Sort a checkpoint's manifest before its files, so that none ever looks damaged, and leases last, oldest first."""
    name = file.path.rsplit("/", 1)[-1]
    if "/leases/" in file.path:
        return 2, epoch_of(file.path), name
    return 0 if name == "MANIFEST.json" else 1, 0, file.path
