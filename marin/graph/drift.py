"""Code drift: a result whose step's source has changed since, under the same declared version.

A declared version is a promise that the output still means the same. Nobody can check the promise, so every difference
is shown until somebody raises the version, reruns, or blesses the change.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from marin.base.errors import ConfigurationError
from marin.base.json import Json
from marin.graph.explain import Change
from marin.graph.recipe import Accepted

OnDrift = Literal["warn", "rerun", "fail"]


@dataclass(frozen=True)
class Drift:
    """One result that older source made."""

    name: str
    step: str
    version: int
    recorded: str
    now: str
    changes: tuple[Change, ...]
    """The definitions that differ; empty when the older ones were not kept."""

    def to_json(self) -> dict[str, Json]:
        """Return the object that `--json` shows."""
        return {
            "name": self.name,
            "step": self.step,
            "version": self.version,
            "recorded": self.recorded,
            "now": self.now,
            "changes": [change.to_json() for change in self.changes],
        }


def has_drifted(recorded: str | None, now: str, accepted: Accepted) -> bool:
    """Whether source differs from what made a result, blessings taken into account; unknown source has not."""
    return recorded is not None and accepted.get(recorded, recorded) != accepted.get(now, now)


def changed_definitions(old: Mapping[str, str], new: Mapping[str, str]) -> tuple[Change, ...]:
    """Return the definitions that differ, by name; none when the old ones are not known."""
    if not old:
        return ()
    pairs = {name: (old.get(name), new.get(name)) for name in sorted({*old, *new})}
    return tuple(Change("code", name, a and a[:8], b and b[:8]) for name, (a, b) in pairs.items() if a != b)


def refuse_drift(found: Sequence[Drift], on_drift: OnDrift) -> None:
    """Raise ConfigurationError where drift is not to be passed over."""
    if on_drift == "fail" and found:
        names = ", ".join(each.name for each in found[:5]) + (f" and {len(found) - 5} more" if len(found) > 5 else "")
        raise ConfigurationError(
            f"code drift: the source of {names} has changed under its declared version since its result was made",
            where=f"step {found[0].name}, version {found[0].version}",
            hint="raise the version, or `marin bless` the change, or choose --on-drift rerun or warn",
        )
