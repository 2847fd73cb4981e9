"""How long shards take, and how many go into a group: pure.

Invariant: a group is meant to take a few seconds, so that groups are few enough to be cheap, and a worker that goes
away leaves little behind; towards the end groups become smaller, so that all workers end together.
"""

import statistics
from collections import deque
from collections.abc import Iterable

GROUP_SECONDS = 2.0
LEAST_SECONDS = 0.2
"""A group that is smaller for the balance's sake is not made smaller than this."""
MAX_GROUP = 1024
GROUPS_PER_WORKER = 4
_KEPT = 512


class Pace:
    """The times of the latest shards."""

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=_KEPT)

    def add(self, seconds: Iterable[float]) -> None:
        """Note how long shards took."""
        self._seconds.extend(seconds)

    @property
    def median(self) -> float:
        """The usual time of a shard; 0 while none is known."""
        return statistics.median(self._seconds) if self._seconds else 0.0

    def group(self, left: int, width: int) -> int:
        """Return how many of the shards that are left go into the next group; one while their time is not known."""
        if not self._seconds:
            return 1
        each = max(statistics.fmean(self._seconds), 1e-6)
        most = max(1, min(MAX_GROUP, int(GROUP_SECONDS / each)))
        least = max(1, min(most, int(LEAST_SECONDS / each)))
        return min(most, max(least, left // (GROUPS_PER_WORKER * width)))
