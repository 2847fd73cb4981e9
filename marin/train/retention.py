"""Which checkpoints of a run stay, and which make way: pure. No torch here.

Invariant: of what is good the newest always stays, so a run never loses the place from which it would go on.
"""

from collections.abc import Sequence
from typing import Annotated, NamedTuple

from pydantic import Field

from marin.base.config import Config, Several
from marin.base.errors import ConfigurationError
from marin.train.nonfinite import NonFinite, RollBack


class Keep(Config):
    """Which checkpoints stay while a run goes on and after it; all others make way once two newer ones are good."""

    last: int = Field(default=2, ge=1)
    """The newest good ones, from which the run would go on."""
    every: int | None = Field(default=None, ge=1)
    """Those of each so many steps, for good; one is written there."""
    at: Several[Annotated[int, Field(ge=1)]] = ()
    """Those of these steps, for good; one is written there."""
    best: bool = False
    """The one with the lowest loss on held-out sequences; one is written at each look that finds a lower one."""

    def keeps(self, step: int) -> bool:
        """Whether the checkpoint of this step stays for good."""
        return step in self.at or (self.every is not None and step % self.every == 0)


class Found(NamedTuple):
    """A folder that looks like a checkpoint; `committed` once it has a manifest. In order of step and generation."""

    step: int
    generation: int
    name: str
    committed: bool
    bad: bool
    pinned: bool
    score: float | None = None
    """Loss on held-out sequences at this step, where it was looked at."""

    @property
    def good(self) -> bool:
        """Whether it counts: it was committed, and nobody has found it damaged."""
        return self.committed and not self.bad


def superfluous(found: Sequence[Found], keep: Keep) -> list[Found]:
    """Return what makes way of checkpoints in their order: what is older than the last good ones and not to be kept.

    What is torn or bad goes with the good ones around it. Nothing goes while nothing good is there.
    """
    good = [each for each in found if each.good]
    last = good[-keep.last :]
    if not last:
        return []
    stays = {each.step: each.name for each in good if keep.keeps(each.step)}  # of one step the newest
    scored = [each for each in good if each.score is not None]
    best = min(scored, key=lambda each: (each.score, each.step)).name if keep.best and scored else ""
    names = {*stays.values(), best}
    return [each for each in found if each < last[0] and each.name not in names and not each.pinned]


def check_keep(keep: Keep, nonfinite: NonFinite, *, where: str) -> None:
    """Raise ConfigurationError where a run that can roll back would have to write a checkpoint between its own.

    It returns to its last checkpoint, so another one more would change what is learnt.
    """
    if not isinstance(nonfinite, RollBack):
        return
    for step in [*keep.at, *([keep.every] if keep.every else [])]:
        if step % nonfinite.every:
            raise ConfigurationError(
                f"a checkpoint of step {step} is to be kept, but with RollBack(every={nonfinite.every}) there are only "
                f"those of each {nonfinite.every} steps",
                where=where,
                hint=f"keep multiples of {nonfinite.every}, or give RollBack an `every` that divides {step}",
            )
