"""`marin logs`: what the workers of a run wrote, by step, attempt and rank; followed while the run lives."""

import json
import threading
from collections.abc import Iterable

import click

from marin.base.errors import ConfigurationError, StoreError, did_you_mean
from marin.cli.options import common_options, existing_store, write_json
from marin.cli.status_verb import find_run, run_progress
from marin.store import Store, read_submission
from marin.view.liveness import Pulse
from marin.view.logs import Chunk, LogReader, Wanted

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

    With `--follow`, `--json` writes an object a line: name, attempt, file, text.
    """
    opened = existing_store(store)
    name = find_run(opened, run)
    _check_step(opened, name, step)
    reader = LogReader(opened, name, Wanted(step, attempt, rank))
    writer = _Writer(as_json=as_json)
    if follow:
        _follow(opened, name, reader, writer)
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
        click.echo(f"no worker of run {name} has written anything{tail}", err=True)


def attempt_logs(store: Store, run: str, step: str | None) -> list[dict[str, str]]:
    """Return the log files of every attempt that the run's events name, in order."""
    return [chunk._asdict() for chunk in whole(LogReader(store, run, Wanted(step)).poll())]


def whole(chunks: Iterable[Chunk]) -> list[Chunk]:
    """Return chunks of the same file as one."""
    found: dict[tuple[str, str, str], str] = {}
    for name, attempt, file, text in chunks:
        found[name, attempt, file] = found.get((name, attempt, file), "") + text
    return [Chunk(*key, text) for key, text in found.items()]


def _follow(store: Store, run: str, reader: LogReader, writer: "_Writer") -> None:
    """Write what comes until the run is over, and then what came last."""
    pulse, pause = Pulse(store, run), threading.Event()
    goes_on = True
    while goes_on:
        try:
            goes_on = pulse.state(store.read_run(run)) in ("running", "waiting")
            writer.write(reader.poll())
        except StoreError:  # it may stumble: what is left out now comes with the next look
            goes_on = True
        pause.wait(POLL_SECONDS if goes_on else 0)


def _check_step(store: Store, run: str, step: str | None) -> None:
    names = list(run_progress(store, run, store.read_run(run) or {}).rows)
    if step is not None and names and step not in names:
        hint = did_you_mean(step, names) or f"its steps are {', '.join(names)}"
        raise ConfigurationError(f"run {run} has no step `{step}`", hint=hint)


def _check_there_are_none(store: Store, run: str, step: str | None, attempt: str | None, rank: int | None) -> None:
    """Raise ConfigurationError if there are logs, only not of this attempt or rank."""
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
        self.wrote = False

    def write(self, chunks: Iterable[Chunk]) -> None:
        """Write text as it is."""
        for chunk in chunks:
            self.wrote = True
            if self._as_json:
                click.echo(json.dumps({"schema": 1, **chunk._asdict()}, ensure_ascii=False))
                continue
            if self._last != chunk[:3]:
                self.end()
                click.echo(click.style(f"== {chunk.name} {chunk.attempt} {chunk.file}", bold=True))
                self._last = chunk[:3]
            click.echo(chunk.text, nl=False)
            self._ends_line = chunk.text.endswith("\n")

    def end(self) -> None:
        """Leave no half line."""
        if not self._ends_line:
            click.echo()
        self._ends_line = True
