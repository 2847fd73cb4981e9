"""Lease: time-bound right to produce one fingerprint, so that nothing is done twice.

Records `leases/<epoch>.json` are create-only; the holder is the highest epoch that has no `<epoch>.released.json`. A
holder is dead when its process certainly is, or when its run's heartbeat has not changed for `ttl` seconds on the
waiter's own monotonic clock: clocks of two hosts are never compared. Correctness never depends on a lease: two
producers waste work and corrupt nothing. Hence a lease that cannot be given back is no failure of the work done.
"""

import logging
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

from marin import fs
from marin.base.errors import StoreError
from marin.base.json import Json
from marin.store import layout, records
from marin.store.process import certainly_gone, this_process
from marin.store.store import Store

log = logging.getLogger(__name__)

TTL_SECONDS = 90.0
_KIND = "lease"


@dataclass(frozen=True)
class Lease:
    """The right to produce a fingerprint, held by this run."""

    url: str
    epoch: int


@dataclass(frozen=True)
class Holder:
    """Another run that produces the fingerprint now."""

    run: str
    user: str
    host: str
    since: str
    epoch: int


class _Record(NamedTuple):
    """What a lease's record says."""

    holder: Holder
    nonce: str
    process: dict[str, Any]  # Any: JSON


class _Watch(NamedTuple):
    """What a waiter has seen of a run's heartbeat, on its own clock."""

    beat: bytes
    since: float
    """When it was first seen to be this one."""
    looked: float


class Leases:
    """Takes and gives back the leases of one run, from any number of threads; of one fingerprint from one at a time."""

    def __init__(
        self,
        store: Store,
        run: str,
        *,
        user: str = "unknown",
        ttl: float = TTL_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._run = run
        self._user = user
        self._ttl = ttl
        self._clock = clock
        self._watched: dict[str, _Watch] = {}
        self._asked: dict[tuple[str, str], str] = {}
        self._owed: list[Lease] = []
        self._lock = threading.Lock()

    def acquire(self, step: str, fingerprint: str) -> Lease | Holder:
        """Take the lease, or return who holds it; never waits. Raises StoreError when the store does not answer."""
        self._settle_debts()
        folder = fs.join(self._store.artifact_folder(step, fingerprint), "leases")
        # One nonce until it is answered: a request whose answer was lost is known again, also by a later call.
        nonce = self._asked.setdefault((step, fingerprint), secrets.token_hex(8))
        epoch = 0
        while True:
            names = fs.list_folder(folder)
            epochs = (int(name.split(".")[0]) for name in names if name.split(".")[0].isdigit())
            epoch = max(epoch, *epochs, 0)
            if epoch and f"{epoch}.released.json" not in names:
                url = fs.join(folder, f"{epoch}.json")
                mine = Lease(url, epoch)
                if self._forgive(mine):  # nobody has had it since: it is mine again
                    return self._taken(step, fingerprint, mine)
                record = _read(url, epoch, fingerprint)
                if record is not None and record.nonce == nonce:
                    return self._taken(step, fingerprint, mine)
                if record is not None and not self._is_dead(record):
                    return record.holder
            epoch += 1
            url = fs.join(folder, f"{epoch}.json")
            if fs.create(url, records.encode(_KIND, self._record(fingerprint, nonce)), durable=False):
                return self._taken(step, fingerprint, Lease(url, epoch))

    def release(self, lease: Lease) -> None:
        """Give a lease back; doing it twice is fine.

        While the store does not answer it is owed, and given back with the next call; when this run ends first, its
        heartbeat ends with it, and the lease with that.
        """
        with self._lock:
            if lease not in self._owed:
                self._owed.append(lease)
        self._settle_debts()

    def _settle_debts(self) -> None:
        while (lease := self._next_debt()) is not None:
            url = lease.url.removesuffix(".json") + ".released.json"
            try:
                fs.create(url, records.encode("released", {"run": self._run, "at": _now()}), durable=False)
            except StoreError as error:
                log.warning("a lease could not be given back yet (%s)", error)
                with self._lock:
                    self._owed.insert(0, lease)
                return

    def _next_debt(self) -> Lease | None:
        """Take a lease off the list, so that no other thread gives it back, or takes it again, at the same time."""
        with self._lock:
            return self._owed.pop(0) if self._owed else None

    def _forgive(self, lease: Lease) -> bool:
        """Whether a lease was still to be given back; it is not any more."""
        with self._lock:
            owed = lease in self._owed
            if owed:
                self._owed.remove(lease)
            return owed

    def _taken(self, step: str, fingerprint: str, lease: Lease) -> Lease:
        del self._asked[(step, fingerprint)]
        return lease

    def _record(self, fingerprint: str, nonce: str) -> dict[str, Json]:
        return {
            "fingerprint": fingerprint,
            "run": self._run,
            "nonce": nonce,
            "user": self._user,
            "process": this_process(),
            "since": _now(),
        }

    def _is_dead(self, record: _Record) -> bool:
        if certainly_gone(record.process):
            return True
        run = record.holder.run
        beat = _read_or_empty(fs.join(layout.run_folder(self._store.url, run), "heartbeat.json"))
        now = self._clock()
        seen = self._watched.get(run)
        # A waiter that did not look for so long has slept itself, perhaps with the holder: it starts to count anew.
        if seen is None or seen.beat != beat or now - seen.looked > self._ttl:
            seen = _Watch(beat, now, now)
        self._watched[run] = seen._replace(looked=now)
        return now - seen.since >= self._ttl


def _read(url: str, epoch: int, fingerprint: str) -> _Record | None:
    """Return a lease's record; None, with a warning, when it cannot be believed, which two reads must agree on."""
    for _ in range(2):
        found = records.load(url, _KIND)
        try:
            if found is not None and found["fingerprint"][: layout.PREFIX_HEX] != fingerprint[: layout.PREFIX_HEX]:
                log.warning("%s is of another result; it is passed over", url)
            elif found is not None:
                holder = Holder(found["run"], found["user"], found["process"]["host"], found["since"], epoch)
                return _Record(holder, found["nonce"], found["process"])
        except (KeyError, TypeError):
            log.warning("%s lacks what a lease says; it is passed over", url)
    return None


def _read_or_empty(url: str) -> bytes:
    try:
        return fs.read(url)
    except fs.NotFound:
        return b""


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
