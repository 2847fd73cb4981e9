"""`marin logs`: what the workers of a run wrote, by step, attempt and rank; followed while the run lives."""

import os
import sys
import threading
import time
from collections.abc import Iterable

import click

from marin.base.errors import ConfigurationError, StoreError, did_you_mean
from marin.base.text import one_line
from marin.cli.follow import PATIENCE_SECONDS
from marin.cli.json_text import write_json_line
from marin.cli.options import common_options, existing_store, write_json
from marin.cli.status_verb import find_run
from marin.store import Store, read_submission
from marin.view.liveness import Pulse
from marin.view.logs import Chunk, LogReader, Wanted
from marin.view.standing import DamagedRun, Record, read_record, run_rows
from marin.view.terminal import TerminalText

POLL_SECONDS = 1.0

EPILOG = """\b
Examples:
  marin logs --step train --rank 0
  marin logs 20261201-134501-7f3a --follow --store s3://lab/marin"""


@click.command(epilog=EPILOG)
@click.argument("run", required=False)
@click.option("--step", help="Only this step, by its name in the plan.")
@click.option("--attempt", help="Only this attempt: 1, 2 ... within its step, or its id.")
@click.option("--rank", type=int, help="Only this rank of a gang.")
@click.option("--follow", "-f", is_flag=True, help="Go on until the run is over.")
@common_options
def command(
    run: str | None,
    step: str | None,
    attempt: str | None,
    rank: int | None,
    follow: bool,
    store: str,
    as_json: bool,
    traceback: bool,
) -> None:
    """Write the logs of RUN's attempts; of the newest run when none is named.

    A terminal gets colours and text: other control characters are written out, and of a line that is written
    over (a progress bar) its last state is shown. A pipe or file gets what was written, byte for byte. With
    `--follow`, `--json` writes an object a line: name, attempt, file, text.
    """
    opened = existing_store(store)
    name = find_run(opened, run)
    _check_step(name, opened.read_run(name), step)
    reader = LogReader(opened, name, Wanted(step, attempt, rank))
    writer = _Writer(as_json=as_json)
    if follow:
        _follow(opened, name, reader, writer, step)
        if not writer.wrote:
            _check_there_are_none(opened, name, step, attempt, rank)
    elif as_json:
        chunks = whole(reader.poll())
        if not chunks:
            _check_there_are_none(opened, name, step, attempt, rank)
        write_json({"run": name, "logs": [chunk._asdict() for chunk in chunks]})
        return
    else:
        writer.write(reader.poll())
        if not writer.wrote:
            _check_there_are_none(opened, name, step, attempt, rank)
    writer.end()
    if not writer.wrote:
        sent = read_submission(opened.url, name)
        tail = f"; its driver writes to Ray: ray job logs {sent.ray_job} --address {sent.address}" if sent else ""
        who = f"worker of step {step} of run {name}" if step is not None else f"worker of run {name}"
        click.echo(f"no {who} has written anything{tail}", err=True)


def attempt_logs(store: Store, run: str, step: str | None) -> list[dict[str, str]]:
    """Return the log files of every attempt that the run's events name, in order."""
    return [chunk._asdict() for chunk in whole(LogReader(store, run, Wanted(step)).poll())]


def whole(chunks: Iterable[Chunk]) -> list[Chunk]:
    """Return chunks of the same file as one."""
    found: dict[tuple[str, str, str], str] = {}
    for name, attempt, file, text in chunks:
        found[name, attempt, file] = found.get((name, attempt, file), "") + text
    return [Chunk(*key, text) for key, text in found.items()]


def _follow(store: Store, run: str, reader: LogReader, writer: "_Writer", step: str | None) -> None:
    """Write what comes until the run is over, and what came last; name a step that it lacks once it is planned."""
    pulse, pause = Pulse(store, run), threading.Event()
    goes_on, answered = True, time.monotonic()
    while goes_on:
        try:
            record = read_record(store, run)
            _check_step(run, record, step)
            goes_on = pulse.state(record) in ("running", "waiting")
            writer.write(reader.poll())
            answered = time.monotonic()
        except DamagedRun:  # whether it goes on cannot be known: what it wrote is all there is
            writer.write(reader.poll())
            writer.end()
            raise
        except StoreError:  # it may stumble: what is left out now comes with the next look
            if time.monotonic() - answered > PATIENCE_SECONDS:
                raise
            goes_on = True
        pause.wait(POLL_SECONDS if goes_on else 0)


def _check_step(run: str, record: Record | None, step: str | None) -> None:
    names = list(run_rows(record or {}).rows)
    if step is not None and names and step not in names:
        hint = did_you_mean(step, names) or f"its steps are {', '.join(names)}"
        raise ConfigurationError(f"run {run} has no step `{step}`", hint=hint)


def _check_there_are_none(store: Store, run: str, step: str | None, attempt: str | None, rank: int | None) -> None:
    """Raise ConfigurationError if there is no such step, or if there are logs, only not of this attempt or rank."""
    _check_step(run, store.read_run(run), step)
    others = whole(LogReader(store, run, Wanted(step)).poll()) if rank is not None or attempt is not None else []
    if others:
        asked = [f"attempt {attempt}"] * (attempt is not None) + [f"rank {rank}"] * (rank is not None)
        there = ", ".join(f"{each.attempt} {each.file}" for each in others[:8])
        raise ConfigurationError(f"run {run} has no log of {' and '.join(asked)}", hint=f"there are {there}")


class _Writer:
    """Writes chunks, with a heading wherever another file begins."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._last: tuple[str, str, str] | None = None
        self._ends_line = True
        is_terminal = sys.stdout is not None and sys.stdout.isatty()
        self._shown = TerminalText(colours=not os.environ.get("NO_COLOR")) if is_terminal else None
        self.wrote = False

    def write(self, chunks: Iterable[Chunk]) -> None:
        """Write text as it is, to a terminal what it may show."""
        for chunk in chunks:
            self.wrote = True
            if self._as_json:
                write_json_line(chunk._asdict())
                continue
            if self._last != chunk[:3]:
                self.end()
                click.echo(click.style(one_line(f"== {chunk.name} {chunk.attempt} {chunk.file}"), bold=True))
                self._last = chunk[:3]
            self._put(chunk.text if self._shown is None else self._shown.feed(chunk.text))

    def end(self) -> None:
        """Leave no half line."""
        if self._shown is not None:
            self._put(self._shown.end())
        elif not self._ends_line:
            click.echo()
        self._ends_line = True

    def _put(self, text: str) -> None:
        click.echo(text, nl=False, color=True)  # click would take colours out of what goes to a pipe
        self._ends_line = text.endswith("\n") if text else self._ends_line
