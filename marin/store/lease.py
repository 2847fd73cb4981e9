"""Lease: time-bound right to produce one fingerprint, so that nothing is done twice.

Records `leases/<epoch>.json` are create-only; the holder is the highest epoch that has no `<epoch>.released.json`. A
holder is dead when its process certainly is, or when its run's heartbeat has not changed for `ttl` seconds on the
waiter's own monotonic clock: clocks of two hosts are never compared. Correctness never depends on a lease: two
producers waste work and corrupt nothing.
"""

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from marin import fs
from marin.base.json import Json
from marin.store import layout, records
from marin.store.process import certainly_gone, this_process
from marin.store.store import Store

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


class Leases:
    """Takes and gives back the leases of one run."""

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
        self._seen: dict[str, tuple[bytes, float]] = {}

    def acquire(self, step: str, fingerprint: str) -> Lease | Holder:
        """Take the lease, or return who holds it; never waits."""
        folder = fs.join(self._store.artifact_folder(step, fingerprint), "leases")
        while True:
            names = fs.list_folder(folder)
            epoch = max((int(name.split(".")[0]) for name in names if name.split(".")[0].isdigit()), default=0)
            if epoch and f"{epoch}.released.json" not in names:
                holder = records.load(fs.join(folder, f"{epoch}.json"), _KIND)
                if holder is not None and not self._is_dead(holder):
                    return Holder(holder["run"], holder["user"], holder["process"]["host"], holder["since"], epoch)
            url = fs.join(folder, f"{epoch + 1}.json")
            if fs.create(url, records.encode(_KIND, self._record(fingerprint))):
                return Lease(url, epoch + 1)

    def release(self, lease: Lease) -> None:
        """Give a lease back; doing it twice is fine."""
        url = lease.url.removesuffix(".json") + ".released.json"
        fs.create(url, records.encode("released", {"run": self._run, "at": _now()}))

    def _record(self, fingerprint: str) -> dict[str, Json]:
        return {
            "fingerprint": fingerprint,
            "run": self._run,
            "nonce": secrets.token_hex(8),
            "user": self._user,
            "process": this_process(),
            "since": _now(),
        }

    def _is_dead(self, holder: dict[str, Any]) -> bool:  # Any: JSON
        if certainly_gone(holder["process"]):
            return True
        beat = _read_or_empty(fs.join(layout.run_folder(self._store.url, holder["run"]), "heartbeat.json"))
        seen, since = self._seen.get(holder["run"], (None, 0.0))
        if seen != beat:
            self._seen[holder["run"]] = (beat, self._clock())
            return False
        return self._clock() - since >= self._ttl


def _read_or_empty(url: str) -> bytes:
    try:
        return fs.read(url)
    except fs.NotFound:
        return b""


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
