"""Whether a try that ended badly is worth another one: pure decisions with a budget per cause.

A loss of infrastructure (worker killed, out of memory, hung) spends the budget of `Resources.retries`; an exception of
the user's code has no budget; a preemption costs nothing. Clocks and processes are unknown here.
"""

from dataclasses import dataclass, replace
from enum import StrEnum

MAX_DELAY = 30.0


class Cause(StrEnum):
    """Why an attempt, a shard or a gang ended without a result."""

    EXCEPTION = "exception"
    LOST = "worker lost"
    OUT_OF_MEMORY = "out of memory"
    HUNG = "hung"
    PREEMPTED = "preempted"
    TIMEOUT = "timeout"
    STOPPED = "stopped"


RETRIED = frozenset({Cause.LOST, Cause.OUT_OF_MEMORY, Cause.HUNG, Cause.PREEMPTED})


@dataclass(frozen=True, slots=True)
class Budget:
    """How many more losses are forgiven."""

    retries: int
    spent: int = 0

    def allows(self, cause: Cause) -> bool:
        """Whether another try follows an end by `cause`."""
        return cause in RETRIED and (cause is Cause.PREEMPTED or self.spent < self.retries)

    def after(self, cause: Cause) -> "Budget":
        """Return what is left once another try has been granted."""
        return self if cause is Cause.PREEMPTED else replace(self, spent=self.spent + 1)

    def renewed(self) -> "Budget":
        """Return the full budget: progress was committed since the last loss."""
        return replace(self, spent=0)

    @property
    def delay(self) -> float:
        """Seconds to wait before the next try: 0 after the first loss, then 1, 2, 4 ... at most 30."""
        return 0.0 if self.spent < 2 else min(MAX_DELAY, 2.0 ** (self.spent - 2))
