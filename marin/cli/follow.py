"""Following a run that goes on elsewhere: its screen from the store until it is over, and what it came to.

Invariant: nothing here touches the run; leaving by Ctrl-C, a closed pipe or a closed terminal changes nothing for it.
"""

import shlex
import threading
import time
from collections.abc import Callable
from typing import Any

import click
from rich.console import Console

from marin.base.errors import ClusterError, ConfigurationError, InputError, MarinError, StoreError
from marin.cli.errors import write_error
from marin.cli.live import Follower, Lines, Screen, Tables
from marin.cli.options import EXIT_CODES, stderr, store_arguments
from marin.cli.summary import draw_failures, draw_stopped, draw_summary, took
from marin.run.result import RunResult
from marin.store import Store, read_submission
from marin.view.liveness import Pulse
from marin.view.progress import RunProgress

LOOK_SECONDS = 1.0
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

    def begun(self, console: Console) -> Record | None:
        """Wait until the driver has begun and return the run's record; None if it was stopped before."""
        said = time.monotonic()
        pause = threading.Event()
        while (record := self._look()[1]) is None:
            if time.monotonic() - said >= SAY_SECONDS:
                said = time.monotonic()
                console.print(f"waiting for the cluster to begin run {self._run}")
            error = self._ended()
            if error is not None and self._look()[1] is None:
                raise error
            pause.wait(LOOK_SECONDS)
        return record

    def over(self) -> str:
        """Wait until the run is over and return its state: done, failed, stopped or lost."""
        pause = threading.Event()
        while (state := self._look()[0]) == "running":
            if self._ended() is not None and self._look()[0] == "running":
                return "lost"
            pause.wait(LOOK_SECONDS)
        return state

    def _look(self) -> tuple[str, Record | None]:
        """Return state and record; a store that does not answer for a minute is told, not one that stumbles."""
        while True:
            try:
                record = self._store.read_run(self._run)
                state = self._pulse.state(record)
            except StoreError:
                if time.monotonic() - self._answered > PATIENCE_SECONDS:
                    raise
                threading.Event().wait(LOOK_SECONDS)
                continue
            self._answered = time.monotonic()
            return state, record


def follow(store: Store, run: str, *, as_json: bool, option: str, ended: Ended = _goes_on) -> int:
    """Show a run until it is over, then what it came to; return the exit code of its state."""
    began = time.monotonic()
    console = stderr()
    watched = Watched(store, run, ended=ended)
    record = watched.begun(console) or {}
    progress = RunProgress.of((str(step.get("name")), str(step.get("step"))) for step in record.get("steps") or ())
    screen: Screen = Tables(console) if console.is_terminal and not as_json else Lines(console)
    with Follower(store.url, run, progress, screen):
        state = watched.over()
    record = store.read_run(run) or record
    again = next_command(store, run, record, option)
    if state == "lost":
        click.echo(f"lost: the driver of run {run} is gone; what was finished is kept\nthen: {again}", err=True)
        return EXIT_CODES["failed"]
    result = RunResult.from_record(record)
    if not as_json:
        draw_summary(result, progress, store)
    draw_error(record)
    if any(step.state == "failed" for step in result.steps):
        draw_failures(result, again, option)
    elif state == "stopped":
        draw_stopped(again)
    stderr().print(took(result, time.monotonic() - began), style="bold")
    return exit_code(record)


def exit_code(record: Record) -> int:
    """Return what `marin run` exited with for this run."""
    known = {kind.__name__: kind.exit_code for kind in (ClusterError, ConfigurationError, InputError, StoreError)}
    error = record.get("error") or {}
    return known.get(str(error.get("type")), EXIT_CODES[record["state"]])


def draw_error(record: Record) -> None:
    """Write what ended a run as a whole, if anything did: a cluster that cannot hold a step, a store that went away."""
    error = record.get("error")
    if error:
        write_error(*(str(error.get(name) or "") for name in ("message", "where", "hint")))


def next_command(store: Store, run: str, record: Record, option: str) -> str:
    """Return the command that continues a run, as it was begun: `marin run ...` or `marin submit ...`."""
    submission = read_submission(store.url, run)
    stores = store_arguments(option)
    if submission is None:
        typed = [*record.get("arguments", ()), str(record.get("target", "TARGET")), *record.get("options", ())]
        return f"marin run {shlex.join(map(str, typed))}{stores}"
    typed = [*submission.arguments, submission.target, *submission.options]
    return f"marin submit --address {submission.address} {shlex.join(typed)}{stores}"


def say_left(run: str, option: str) -> None:
    """Say that a run goes on without this terminal, and the next commands."""
    stores = store_arguments(option)
    click.echo(f"\nrun {run} goes on without you", err=True)
    for command in (f"marin watch {run}", f"marin logs {run} --follow", f"marin stop {run}"):
        click.echo(f"  {command}{stores}", err=True)
