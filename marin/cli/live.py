"""What a person sees while a run goes on: a live table on a terminal, otherwise a line per change.

Workers write events; only this draws. It follows the store in a thread of its own and never touches the run.
"""

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Protocol

from rich.console import Console, Group
from rich.constrain import Constrain
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from marin.base.errors import StoreError
from marin.base.text import printable
from marin.base.units import format_count, format_seconds
from marin.cli.options import styled_state
from marin.store import EventReader
from marin.view.in_order import InOrder
from marin.view.moments import clock_text
from marin.view.progress import Event, RunProgress, StepRow

POLL_SECONDS = 0.5
LAST_SECONDS = 2.0
"""How long the last words of a run that has ended may be on their way."""
LINE_SECONDS = 30.0
WIDE = 100


class Screen(Protocol):
    """Shows a run's progress."""

    def show(self, progress: RunProgress, changed: list[StepRow]) -> None:
        """Show how the run stands; `changed` are the rows whose state moved."""

    def close(self) -> None:
        """Leave the screen as it should stay."""


class Follower:
    """Reads a run's events and hands them to a screen until it is closed.

    A screen that cannot be written to, because its terminal or reader has gone, is given up; `broken` says why.
    """

    def __init__(self, store_url: str, run: str, progress: RunProgress, screen: Screen) -> None:
        self.progress = progress
        self.broken: OSError | None = None
        self._reader = EventReader(store_url, run)
        self._order = InOrder()
        self._screen = screen
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="screen", daemon=True)

    def __enter__(self) -> "Follower":
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._ended.set()
        self._thread.join(timeout=10)
        until = time.monotonic() + (LAST_SECONDS if kind is None else 0)
        self._show(self._order.take(self._events()) + self._order.rest())
        while self.progress.state == "running" and time.monotonic() < until:
            threading.Event().wait(POLL_SECONDS / 5)
            self._show(self._order.take(self._events()) + self._order.rest())
        with contextlib.suppress(OSError):
            self._screen.close()

    def _follow(self) -> None:
        while not self._ended.wait(POLL_SECONDS):
            self._show(self._order.take(self._events()))

    def _events(self) -> Sequence[Event]:
        try:
            return self._reader.poll()
        except StoreError:  # the run itself reports a store that does not answer
            return []

    def _show(self, events: Sequence[Event]) -> None:
        changed = self.progress.apply(events)
        if self.broken is None:
            try:
                self._screen.show(self.progress, changed)
            except OSError as error:
                self.broken = error


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
            tail = f"{took}{_shards(row)}{printable(row.words.removeprefix(row.state))}"
            line = Text.assemble(printable(f"{clock_text(row.said)} {row.name} "), styled_state(row.state), tail)
            self._console.print(line, soft_wrap=True)
        for row in progress.rows.values():
            quiet = (now - self._said.setdefault(row.name, now)).total_seconds()
            if row.state == "running" and row.total and quiet >= LINE_SECONDS:
                self._said[row.name] = now
                parts = (_counts(row), _rates(row, now.isoformat()), row.slowest(now.isoformat()))
                self._console.print(f"{now:%H:%M:%S} {row.name} {' '.join(part for part in parts if part)}")

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
        rows = list(progress.rows.values())
        shown = _fitting(rows, self._live.console.height - 4)
        table = Table(box=None, pad_edge=False, show_header=False)
        for _ in range(4):
            table.add_column(no_wrap=True)
        table.add_column()  # the only one that gives way in a narrow terminal
        for row in shown:
            bar = ProgressBar(total=1, completed=row.fraction, width=20 if self._live.console.width >= WIDE else 8)
            rates = Text(_rates(row, now), no_wrap=True, overflow="ellipsis")
            table.add_row(printable(row.name), styled_state(row.state), bar, _counts(row), rates)
        said = ((row, row.detail or row.slowest(now)) for row in shown)
        notes = [Text(printable(f"{row.name}: {detail}"), style="dim") for row, detail in said if detail]
        if len(shown) < len(rows):
            counts = Counter(row.state for row in rows)
            notes.append(Text(f"{len(rows)} steps: {', '.join(f'{n} {state}' for state, n in counts.items())}"))
        # Room for the ^C that the terminal echoes: were it to wrap, the table would leave a line behind.
        self._live.update(Constrain(Group(table, *notes), self._live.console.width - 3))

    def close(self) -> None:
        """Take the table away: the summary follows."""
        self._live.stop()


def _fitting(rows: list[StepRow], most: int) -> list[StepRow]:
    """Return all rows, or when they do not fit those that need eyes: running and failed ones, in plan order."""
    if len(rows) <= most:
        return rows
    return [row for row in rows if row.state in ("running", "failed")][: max(1, most)]


def _counts(row: StepRow) -> str:
    if row.state == "cached" or not row.total:
        return ""
    return f"{format_count(row.completed)}/{format_count(row.total)} {row.unit}{_shards(row)}"


def _shards(row: StepRow) -> str:
    reused = row.shards.get("reused", 0)
    return f" ({reused} reused)" if reused and row.state not in ("cached", "waiting") else ""


def _rates(row: StepRow, now: str) -> str:
    """Return loss, time left, speed, time so far and attempt: what a narrow terminal cuts off matters least."""
    parts = []
    loss, speed = row.metrics.get("loss"), row.metrics.get("tokens_per_second")
    if isinstance(loss, int | float):
        parts.append(f"loss {loss:.3f}")
    elif loss is not None:
        parts.append(f"loss {loss}")
    if row.seconds_left is not None:
        parts.append(f"{format_seconds(row.seconds_left)} left")
    if row.state == "running" and isinstance(speed, int | float):
        parts.append(f"{format_count(speed)} tokens/s")
        if isinstance(mfu := row.metrics.get("mfu"), int | float):
            parts.append(f"MFU {mfu:.1%}")
    elif row.state == "running" and row.rate:
        parts.append(f"{format_count(row.rate)} {row.unit}/s")
    if row.started and row.state != "cached":
        parts.append(format_seconds(row.seconds(now)))
    if row.attempts > 1:
        parts.append(f"attempt {row.attempts}")
    return ", ".join(parts)
