"""Pins: results that `marin gc` keeps, with all that they were made from, until somebody unpins them.

Invariant: a pin is one create-only record under its name; unpinning deletes that record and nothing else. A record
that cannot be read could protect anything, so whoever is about to delete must stop at it.
"""

import re
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from marin import fs
from marin.base.errors import ConfigurationError, StoreError
from marin.store import layout, records, unlisted
from marin.store.manifest import Manifest

KIND = "pin"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


@dataclass(frozen=True)
class Pin:
    """Who keeps which result under which name, since when and why."""

    name: str
    step: str
    fingerprint: str
    digest: str
    user: str
    at: str
    reason: str | None = None


def default_name(pinned: Manifest) -> str:
    """Return the name of a pin that nobody named: `train-7f3a12bc`."""
    return f"{pinned.step}-{pinned.fingerprint[:8]}"


def pin(store_url: str, pinned: Manifest, *, name: str | None, user: str, reason: str | None) -> Pin:
    """Pin a result and return the record, also when it has this name already; one that was unlisted is listed again.

    Raises ConfigurationError for a taken name, and StoreError when `marin gc` has already begun to delete the result.
    """
    name = name or default_name(pinned)
    if not _NAME.fullmatch(name):
        hint = "use letters, digits, `.`, `_` and `-`, such as --name paper-v1"
        raise ConfigurationError(f"{name!r} is no name for a pin", hint=hint)
    at = datetime.now(UTC).isoformat(timespec="seconds")
    mine = Pin(name, pinned.step, pinned.fingerprint, pinned.digest, user, at, reason)
    url = _url(store_url, name)
    while not fs.create(url, records.encode(KIND, asdict(mine))):
        there = _load(url, name)
        if there is None:
            continue  # it was taken back in between
        if there.fingerprint != mine.fingerprint or there.step != mine.step:
            raise ConfigurationError(
                f"the pin `{name}` keeps another result, {there.step} {there.fingerprint[:8]}",
                where=url,
                hint=f"choose another --name, or `marin unpin {name}` first",
            )
        return there
    # Only now: a collector that does not see the pin has taken the result away before this line, or never will.
    key = (mine.step, mine.fingerprint)
    if unlisted.listed(store_url, *key) is None and unlisted.recall(store_url, *key) is None:
        unpin(store_url, name)
        raise StoreError(
            f"the result {mine.step} {mine.fingerprint[:8]} is gone from the store",
            where=layout.artifact_folder(store_url, *key),
            hint="run its pipeline again, and pin the new one",
        )
    return mine


def unpin(store_url: str, name: str) -> None:
    """Take a pin back; that there is none is fine."""
    fs.delete(_url(store_url, name))


def pins(store_url: str) -> list[Pin]:
    """Return all pins by name; StoreError when one cannot be read."""
    found = [_load(_url(store_url, name), name) for name in pin_names(store_url)]
    return [each for each in found if each is not None]


def readable_pins(store_url: str) -> list[Pin]:
    """Return the pins that can be read, with a warning for each other one; for screens only."""
    stored = fs.read_many(_url(store_url, name) for name in pin_names(store_url))
    records_found = {url: records.decode(data, KIND, where=url) for url, data in stored.items()}
    return [Pin(**record) for record in records_found.values() if record is not None]


def pin_names(store_url: str) -> list[str]:
    """Return the names of all pins, also of those that cannot be read."""
    names = fs.list_folder(layout.pins_folder(store_url))
    return [name.removesuffix(".json") for name in names if name.endswith(".json") and not name.startswith(".")]


def _load(url: str, name: str) -> Pin | None:
    """Return a pin; None when it is gone."""
    try:
        data = fs.read(url)
    except fs.NotFound:
        return None
    record = records.decode(data, KIND, where=url)
    try:
        return Pin(**{**(record or {}), "name": name})
    except TypeError as error:
        hint = f"restore it from a backup, or take it back with `marin unpin {name}`"
        raise StoreError(f"the pin `{name}` cannot be read", where=url, hint=hint) from error


def _url(store_url: str, name: str) -> str:
    return fs.join(layout.pins_folder(store_url), f"{name}.json")
