"""The `Member` of a rank that `python -m marin.train` or torchrun started, with no engine around it.

It says on a callback what an engine would record, and knows neither the environment nor signals: it is handed both.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from marin.base.units import format_count
from marin.graph.context import Rendezvous


@dataclass(frozen=True)
class LaunchedMember:
    """One rank of a launcher; `stop` asks it to checkpoint and stop."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    generation: int = 0
    rendezvous: str = ""
    hosted: Rendezvous | None = None
    say: Callable[[str], None] = lambda line: None
    stop: threading.Event = field(default_factory=threading.Event)

    @property
    def stopping(self) -> bool:
        """Whether `stop` was set."""
        return self.stop.is_set()

    def may_commit(self) -> bool:
        """Yes: a launcher kills the ranks of a generation before it starts the next."""
        return True

    def beat(self, phase: str, step: int) -> None:
        """Nobody watches."""

    def metric(self, **values: float) -> None:
        """Say the numbers on one line."""
        words = [f"{name} {_number(value)}" for name, value in values.items()]
        self.say("  ".join(words))

    def sample(self, *, step: int, prompt: str, completion: str) -> None:
        """Nothing to say: the loop logs it."""

    def progress(self, done: float, total: float, unit: str) -> None:
        """Say how far the training is."""
        self.say(f"{format_count(done)} of {format_count(total)} {unit}, {done / total:.0%}")


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
