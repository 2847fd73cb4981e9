"""What a person sees while a run goes on: a live table on a terminal, otherwise a line per change.

Workers write events; only this draws. It follows the store in a thread of its own and never touches the run.
"""

import threading
from datetime import UTC, datetime
from typing import Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from marin.base.errors import StoreError
from marin.base.units import format_count, format_seconds
from marin.cli.options import styled_state
from marin.store import EventReader
from marin.view.progress import ENDED, RunProgress, StepRow

POLL_SECONDS = 0.5
LINE_SECONDS = 30.0


class Screen(Protocol):
    """Shows a run's progress."""

    def show(self, progress: RunProgress, changed: list[StepRow]) -> None:
        """Show how the run stands; `changed` are the rows whose state moved."""

    def close(self) -> None:
        """Leave the screen as it should stay."""


class Follower:
    """Reads a run's events and hands them to a screen until it is closed."""

    def __init__(self, store_url: str, run: str, progress: RunProgress, screen: Screen) -> None:
        self.progress = progress
        self._reader = EventReader(store_url, run)
        self._screen = screen
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="screen", daemon=True)

    def __enter__(self) -> "Follower":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(timeout=10)
        self._poll()
        self._screen.close()

    def _follow(self) -> None:
        while not self._ended.wait(POLL_SECONDS):
            self._poll()

    def _poll(self) -> None:
        try:
            events = self._reader.poll()
        except StoreError:  # the run itself reports a store that does not answer
            return
        self._screen.show(self.progress, self.progress.apply(events))


class Lines:
    """A line per state change, and at most one progress line per 30 s and step."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._said: dict[str, datetime] = {}

    def show(self, progress: RunProgress, changed: list[StepRow]) -> None:
        """Write what is new."""
        now = datetime.now(UTC)
        for row in changed:
            self._said[row.name] = now
            took = f" in {format_seconds(row.seconds(now.isoformat()))}" if row.state in ("done", "failed") else ""
            detail = f": {row.detail}" if row.detail else ""
            self._console.print(f"{now:%H:%M:%S} {row.name} {styled_state(row.state)}{took}{_shards(row)}{detail}")
        for row in progress.rows.values():
            quiet = (now - self._said.setdefault(row.name, now)).total_seconds()
            if row.state == "running" and row.total and quiet >= LINE_SECONDS:
                self._said[row.name] = now
                self._console.print(f"{now:%H:%M:%S} {row.name} {_counts(row)} {_rates(row, now.isoformat())}".rstrip())

    def close(self) -> None:
        """Nothing is left to do."""


class Tables:
    """One table that is redrawn in place."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, refresh_per_second=4, transient=True)
        self._live.start()

    def show(self, progress: RunProgress, changed: list[StepRow]) -> None:
        """Redraw."""
        now = datetime.now(UTC).isoformat()
        table = Table(box=None, pad_edge=False, show_header=False)
        for row in progress.rows.values():
            bar = ProgressBar(total=1, completed=row.fraction, width=20)
            table.add_row(row.name, Text.from_markup(styled_state(row.state)), bar, _counts(row), _rates(row, now))
        notes = [Text(f"{row.name}: {row.detail}", style="dim") for row in progress.rows.values() if row.detail]
        self._live.update(Group(table, *notes))

    def close(self) -> None:
        """Take the table away: the summary follows."""
        self._live.stop()


def _counts(row: StepRow) -> str:
    if row.state == "cached" or not row.total:
        return ""
    return f"{format_count(row.done)}/{format_count(row.total)} {row.unit}{_shards(row)}"


def _shards(row: StepRow) -> str:
    reused = row.shards.get("reused", 0)
    return f" ({reused} reused)" if reused and row.state not in ("cached", "waiting") else ""


def _rates(row: StepRow, now: str) -> str:
    """Return loss, tokens per second, time so far and time left."""
    parts = []
    loss, rate = row.metrics.get("loss"), row.metrics.get("tokens_per_second")
    if isinstance(loss, int | float):
        parts.append(f"loss {loss:.3f}")
    if isinstance(rate, int | float) and row.state == "running":
        parts.append(f"{format_count(rate)} tokens/s")
    seconds = row.seconds(now)
    if seconds and row.state != "cached":
        parts.append(format_seconds(seconds))
    if row.state not in ENDED and 0.02 < row.fraction < 1:
        parts.append(f"{format_seconds(seconds / row.fraction - seconds)} left")
    if row.attempts > 1:
        parts.append(f"attempt {row.attempts}")
    return ", ".join(parts)
