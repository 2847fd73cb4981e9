"""Rules of what goes wrong with which call to storage: pure decisions, the same for the same seed.

A rule says which calls it is about (operation, path, client), which of those it strikes (the nth, each, or some by
chance), and what happens then. It counts the calls it is about, in one process.
"""

import random
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal, get_args

from marin.base.errors import ConfigurationError, did_you_mean
from marin.base.json import Json

Fault = Literal[
    "slow",
    "timeout",
    "lost",
    "503",
    "409",
    "412",
    "denied",
    "full",
    "cut",
    "flip",
    "crash-before",
    "crash-after",
    "kill-before",
    "kill-after",
]
"""What happens to a call:

- `slow`: it takes `seconds` longer;
- `timeout`: it is never done, and the client sees a timeout;
- `lost`: it is done, and the client sees a timeout;
- `503`, `409`: the store asks to slow down, or is busy with a conflicting request; not done, worth another try;
- `412`: a create is done, its answer is lost, and the client's own second request meets the file it has made;
- `denied`, `full`: not done, for lack of permission or of space;
- `cut`, `flip`: a read gives the first half only, or has one bit wrong;
- `crash-before`, `crash-after`: the client dies, as a `Crash` from this call and from all its later ones;
- `kill-before`, `kill-after`: the process is killed with SIGKILL.
"""

Operation = Literal["read", "create", "put", "part", "delete", "list", "info"]
"""`create` is the exclusive put, `part` a piece of a long upload, `info` whether and what a file is."""


@dataclass(frozen=True)
class Rule:
    """One thing that goes wrong; patterns are those of fnmatch, where `*` crosses folders."""

    fault: Fault
    operation: str = "*"
    path: str = "*"
    """Relative to the storage's root."""
    client: str = "*"
    nth: int | None = None
    """Only this one of the calls that match, from 1."""
    first: int | None = None
    """Only the first so many of the calls that match."""
    probability: float = 1.0
    seconds: float = 0.03

    def __post_init__(self) -> None:
        if self.fault not in get_args(Fault):
            known = ", ".join(get_args(Fault))
            hint = did_you_mean(self.fault, get_args(Fault)) or f"use one of {known}"
            raise ConfigurationError(f"there is no fault {self.fault!r}", where="marin.testing.Rule", hint=hint)

    def concerns(self, operation: str, path: str, client: str) -> bool:
        """Whether the rule is about such a call."""
        wanted = ((operation, self.operation), (path, self.path), (client, self.client))
        return all(fnmatchcase(value, pattern) for value, pattern in wanted)

    def to_json(self) -> dict[str, Json]:
        """Return the rule as a record, for other processes."""
        return asdict(self)


class Rules:
    """Rules with a seed and their counts; equal calls in equal order are struck alike."""

    def __init__(self, rules: Sequence[Rule] = (), *, seed: int = 0) -> None:
        self.rules = tuple(rules)
        self.seed = seed
        self._seen = [0] * len(self.rules)
        self._lock = threading.Lock()

    def strike(self, operation: str, path: str, client: str = "") -> tuple[Rule, ...]:
        """Count a call and return the rules that strike it, in their order."""
        return tuple(
            rule
            for index, rule in enumerate(self.rules)
            if rule.concerns(operation, path, client) and self._strikes(index, rule)
        )

    def _strikes(self, index: int, rule: Rule) -> bool:
        with self._lock:
            self._seen[index] += 1
            number = self._seen[index]
        if rule.nth is not None and number != rule.nth:
            return False
        if rule.first is not None and number > rule.first:
            return False
        return rule.probability >= 1 or random.Random(f"{self.seed}/{index}/{number}").random() < rule.probability

    def to_json(self) -> dict[str, Json]:
        """Return rules and seed as a record, for other processes."""
        return {"seed": self.seed, "rules": [rule.to_json() for rule in self.rules]}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> "Rules":  # Any: JSON
        """Return the rules of such a record, counting from nothing."""
        return cls([Rule(**rule) for rule in record["rules"]], seed=record["seed"])
