"""Blessings: changed code that somebody accepted, so that earlier results stay valid without a rerun.

Invariant: a blessing is one create-only record; taking it back deletes that record and nothing else, and the state
before is there again. Who blessed what, when and why is in the record.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from marin import fs
from marin.base.errors import ConfigurationError
from marin.store import layout, records

KIND = "blessing"


class Blessing(NamedTuple):
    """Code `now` of a step, accepted to mean the same as code `before`."""

    step: str
    before: str
    """Digest of the code that made the results."""
    now: str
    """Digest of the changed code."""
    reason: str
    user: str
    at: str


def bless(store_url: str, *, step: str, before: str, now: str, reason: str, user: str) -> Blessing:
    """Record that changed code means the same; ConfigurationError where it has been blessed already."""
    blessing = Blessing(step, before, now, reason, user, datetime.now(UTC).isoformat(timespec="seconds"))
    if not fs.create(_url(store_url, step, before, now), records.encode(KIND, blessing._asdict())):
        raise ConfigurationError(
            f"this code of {step} has been blessed already",
            where=_url(store_url, step, before, now),
            hint="`marin plan` shows what is cached",
        )
    return blessing


def unbless(store_url: str, blessing: Blessing) -> None:
    """Take a blessing back."""
    fs.delete(_url(store_url, blessing.step, blessing.before, blessing.now))


def blessings(store_url: str, step: str | None = None) -> list[Blessing]:
    """Return all blessings, of one step or of all, oldest first; records that cannot be believed are left out."""
    root = layout.blessed_folder(store_url)
    folders = [fs.join(root, name) for name in ([step] if step else fs.list_folder(root))]
    urls = [fs.join(folder, name) for folder in folders for name in fs.list_folder(folder) if name.endswith(".json")]
    loaded = [records.load(url, KIND) for url in urls]
    return sorted((Blessing(**record) for record in loaded if record is not None), key=lambda each: each.at)


def accepted(found: Sequence[Blessing]) -> Mapping[str, str]:
    """Return each blessed digest with the digest that it stands for, through chains of blessings.

    The last word on a digest counts; a circle ends at the digest where it began.
    """
    direct = {each.now: each.before for each in found}
    meant: dict[str, str] = {}
    for now in direct:
        met = [now]
        while met[-1] in direct and direct[met[-1]] not in met:
            met.append(direct[met[-1]])
        meant[now] = met[-1]
    return meant


def _url(store_url: str, step: str, before: str, now: str) -> str:
    prefix = layout.PREFIX_HEX
    return fs.join(layout.blessed_folder(store_url), step, f"{before[:prefix]}-{now[:prefix]}.json")
