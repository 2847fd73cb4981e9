"""Following a run that goes on elsewhere: its screen from the store until it is over, and what it came to.

Invariant: nothing here touches the run; leaving by Ctrl-C, a closed pipe or a closed terminal changes nothing for it.
"""

import os
import shlex
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import click
from rich.console import Console

from marin.base.errors import (
    CanonicalError,
    ClusterError,
    ConfigurationError,
    InputError,
    MarinError,
    StoreError,
    WiringError,
)
from marin.base.text import printable
from marin.cli.errors import write_error
from marin.cli.live import Follower, Lines, Screen, Tables
from marin.cli.options import EXIT_CODES, stderr, store_arguments
from marin.cli.summary import draw_failures, draw_stopped, draw_summary, took
from marin.run.result import RunResult
from marin.store import Store, read_submission
from marin.view.liveness import Pulse
from marin.view.moments import moment_text, seconds_between
from marin.view.standing import DamagedRun, Standing, not_begun, read_record, run_rows, standing

LOOK_SECONDS = 1.0
LAST_LOOKS = 6
SAY_SECONDS = 30.0
PATIENCE_SECONDS = 60.0
"""How long a store may not answer before whoever follows is told."""

Record = dict[str, Any]  # Any: JSON
Ended = Callable[[], MarinError | None]
"""Asks the cluster whether the run's driver has ended without a word, and returns the error that says so."""


def _goes_on() -> None:
    return None


class Watched:
    """One run, looked at every second until it is over."""

    def __init__(self, store: Store, run: str, *, ended: Ended = _goes_on) -> None:
        self._store = store
        self._run = run
        self._ended = ended
        self._pulse = Pulse(store, run)
        self._answered = time.monotonic()
        self._was_damaged = False

    def begun(self, console: Console) -> Record:
        """Wait until the driver has begun and return the run's record; now and then say how long it has waited."""
        said: float | None = None
        pause = threading.Event()
        while (record := self._look()[1]) is None:
            sent = read_submission(self._store.url, self._run)
            waited = seconds_between(sent.at, datetime.now(UTC).isoformat()) if sent else None
            said = time.monotonic() - min(waited or 0.0, SAY_SECONDS) if said is None else said
            if sent is not None and time.monotonic() - said >= SAY_SECONDS:
                said = time.monotonic()
                console.print(printable(f"run {self._run}: {not_begun(sent)}"), soft_wrap=True)
            error = self._ended()
            if error is not None and self._look()[1] is None:
                raise error
            pause.wait(LOOK_SECONDS)
        return record

    def over(self, follower: Follower | None = None) -> str:
        """Wait until the run is over and return its state: done, failed, stopped or lost.

        Raises what the follower's screen met: whoever only looks on need not go on without one.
        """
        pause = threading.Event()
        while (state := self._look()[0]) == "running":
            error = self._ended()
            if error is not None and self._look()[0] == "running":
                raise error
            if follower is not None and follower.broken is not None:
                raise follower.broken
            pause.wait(LOOK_SECONDS)
        if state == "lost" and (error := self._last_word()) is not None:
            raise error
        return state

    def _last_word(self) -> MarinError | None:
        """Return what the cluster says of a driver that is gone; it may know a little later than the store."""
        for _ in range(LAST_LOOKS if self._ended is not _goes_on else 0):
            if (error := self._ended()) is not None:
                return error
            threading.Event().wait(LOOK_SECONDS)
        return None

    def _look(self) -> tuple[str, Record | None]:
        """Return state and record; a store that does not answer for a minute is told, not one that stumbles."""
        while True:
            try:
                record = read_record(self._store, self._run)
                state = self._pulse.state(record)
            except DamagedRun:
                if self._was_damaged:  # twice: it was not only being written
                    raise
                self._was_damaged = True
            except StoreError:
                if time.monotonic() - self._answered > PATIENCE_SECONDS:
                    raise
            else:
                self._answered, self._was_damaged = time.monotonic(), False
                return state, record
            threading.Event().wait(LOOK_SECONDS)


def followed(store: Store, run: str, *, as_json: bool, option: str, ended: Ended = _goes_on) -> Standing:
    """Show a run until it is over, then what it came to; return how it then stands."""
    console = stderr()
    watched = Watched(store, run, ended=ended)
    record = watched.begun(console)
    progress, state = run_rows(record), str(record.get("state"))
    if state == "running":
        screen: Screen = Tables(console) if console.is_terminal and not as_json else Lines(console)
        with Follower(store.url, run, progress, screen) as follower:
            state = watched.over(follower)
    stands = standing(store, run, state=state)
    draw_end(store, stands, next_command(store, run, stands.record, option), option, as_json=as_json)
    return stands


def draw_end(store: Store, stands: Standing, again: str, option: str, *, as_json: bool) -> None:
    """Write what a run that is over came to."""
    if stands.damage:
        click.echo(printable(f"damaged: {stands.damage}"), err=True)
    if stands.state == "lost":
        gone = f"lost: the driver of run {stands.run} is gone; what was finished is kept"
        click.echo(printable(f"{gone}\nthen: {again}"), err=True)
        return
    result = RunResult.from_record(stands.to_json(None))
    if not as_json:
        draw_summary(result, stands.progress, store)
    draw_error(stands)
    if any(step.state == "failed" for step in result.steps):
        draw_failures(result, again, option)
    elif stands.state == "stopped":
        draw_stopped(again)
    at = f", finished {moment_text(stands.now)}" if stands.record.get("finished") else ""
    stderr().print(took(result, stands.seconds or 0.0) + at, style="bold")


def exit_code(stands: Standing) -> int:
    """Return what `marin run` exited with for this run."""
    kinds = (ClusterError, ConfigurationError, WiringError, CanonicalError, InputError, StoreError)
    known = {kind.__name__: kind.exit_code for kind in kinds}
    return known.get(str((stands.error or {}).get("type")), EXIT_CODES[stands.state])


def draw_error(stands: Standing) -> None:
    """Write what ended a run as a whole, if anything did: a cluster that cannot hold a step, a store that went away."""
    if stands.error:
        write_error(*(str(stands.error.get(name) or "") for name in ("message", "where", "hint")))


def next_command(store: Store, run: str, record: Record, option: str) -> str:
    """Return the command that continues a run, as it was begun: `marin run ...` or `marin submit ...`."""
    submission = read_submission(store.url, run)
    folder = submission.folder if submission is not None else str(record.get("folder") or "")
    is_elsewhere = bool(folder) and os.path.realpath(folder) != os.path.realpath(os.getcwd())
    there = f"cd {shlex.quote(folder)} && " if is_elsewhere else ""
    stores = store_arguments(store.url if is_elsewhere else option)  # a store's relative path means another one there
    if submission is None:
        typed = [*record.get("arguments", ()), str(record.get("target", "TARGET")), *record.get("options", ())]
        return f"{there}marin run {shlex.join(map(str, typed))}{stores}"
    typed = ["--address", submission.address, *submission.arguments, submission.target, *submission.options]
    return f"{there}marin submit {shlex.join(typed)}{stores}"


def say_left(run: str, option: str) -> None:
    """Say that a run goes on without this terminal, and the next commands."""
    stores = store_arguments(option)
    click.echo(f"\nrun {run} goes on without you", err=True)
    for command in (f"marin watch {run}", f"marin logs {run} --follow", f"marin stop {run}"):
        click.echo(f"  {command}{stores}", err=True)
