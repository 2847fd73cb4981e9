"""A result that exists, as plans and screens show it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from marin.base.json import Json


@dataclass(frozen=True, slots=True)
class Produced:
    """Who made a result, when, from which commit, and what it is."""

    run: str
    at: str
    user: str
    commit: str | None
    digest: str
    bytes: int
    seconds: float
    name: str = ""
    """What its step was called in the plan that made it."""
    fingerprint: str = ""
    attempt: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)
    source: str | None = None
    """Digest of the step's source when it ran."""
    store: str = ""
    """URL of the store that has it."""

    def to_json(self) -> dict[str, Json]:
        """Return the object that `--json` shows."""
        return {"run": self.run, "at": self.at, "user": self.user, "commit": self.commit}
