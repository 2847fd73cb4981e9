"""What the user is told when something is wrong.

Every error says what happened, where, and a `hint` with the next command or edit; the constructor insists on
the hint. The tree:

    MarinError                    exit code 1: a step failed
    ├── ConfigurationError        2: wrong usage or configuration
    │   ├── WiringError              a field got a step of the wrong artifact type
    │   └── CanonicalError           a value that cannot be fingerprinted
    ├── InputError                2: external input missing, unreadable or changed
    ├── DataError                 1: content that a step cannot accept
    ├── StoreError                3: the store refused, is damaged, or does not answer
    ├── ClusterError              3: the Ray cluster does not answer or cannot place the work
    ├── CheckpointError           1: a checkpoint cannot be used
    ├── StepError                 1: a step's attempts are used up
    └── Interrupted               130
"""

import difflib
from collections.abc import Iterable
from typing import ClassVar


class MarinError(Exception):
    """An error for the user: `what` happened, `where`, and a `hint` what to do."""

    exit_code: ClassVar[int] = 1

    def __init__(self, what: str, *, where: str = "", hint: str) -> None:
        super().__init__(what)
        self.what = what
        self.ids: dict[str, str] = {}
        """What `--json` names beside it: the `run` that it ended, its `ray_job`."""
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        at = f"\n  at   {self.where}" if self.where else ""
        return f"{self.what}{at}\nhint: {self.hint}"

    def __reduce__(self) -> tuple[object, ...]:
        return (_restore, (type(self), self.what, self.where, self.hint))


def _restore(kind: type[MarinError], what: str, where: str, hint: str) -> MarinError:
    return kind(what, where=where, hint=hint)


class ConfigurationError(MarinError):
    """Wrong usage or configuration; nothing was run."""

    exit_code = 2


class WiringError(ConfigurationError):
    """A field got a step whose artifact is of another type than the field declares."""


class CanonicalError(ConfigurationError):
    """A value in a configuration that has no canonical form, hence no fingerprint."""


class InputError(MarinError):
    """An external input is missing, unreadable, or changed during the run."""

    exit_code = 2


class DataError(MarinError):
    """Content that a step cannot accept, such as an empty corpus."""


class StoreError(MarinError):
    """The store refused, is damaged, or does not answer."""

    exit_code = 3


class ClusterError(MarinError):
    """The Ray cluster does not answer, or can never place the work."""

    exit_code = 3


class CheckpointError(MarinError):
    """A checkpoint is damaged or belongs to another run."""


class StepError(MarinError):
    """A step failed and its attempts are used up."""


class Interrupted(MarinError):
    """The user stopped the run."""

    exit_code = 130


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `did you mean X?` for the nearest of `known`, or an empty string."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"did you mean `{near[0]}`?" if near else ""
