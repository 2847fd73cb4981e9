"""`marin metrics`: the numbers that a run recorded, as a table, as JSON, or in another tool's files."""

import math
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import click
from rich.table import Table

from marin.base.errors import ConfigurationError, StoreError, did_you_mean
from marin.base.text import printable
from marin.base.units import format_size
from marin.cli.follow import PATIENCE_SECONDS
from marin.cli.metric_writers import WRITERS, MetricWriter
from marin.cli.options import common_options, existing_store, stdout, write_json
from marin.cli.status_verb import find_run
from marin.store import Store
from marin.view.liveness import Pulse
from marin.view.metrics import MetricReader, Point, by_name, standing_points
from marin.view.standing import read_record, run_rows

POLL_SECONDS = 1.0

EPILOG = """\b
Examples:
  marin metrics --step train
  marin metrics 20261201-134501-7f3a --to tensorboard boards --follow"""


@click.command(epilog=EPILOG)
@click.argument("run", required=False)
@click.option("--step", help="Only this step, by its name in the plan.")
@click.option("--to", "tool", type=(click.Choice(list(WRITERS)), Path), help="Write files for TOOL into DIR.")
@click.option("--follow", "-f", is_flag=True, help="With --to: go on until the run is over.")
@common_options
def command(
    run: str | None,
    step: str | None,
    tool: tuple[str, Path] | None,
    follow: bool,
    store: str,
    as_json: bool,
    traceback: bool,
) -> None:
    """Show the numbers that RUN recorded; the newest run's when none is named.

    `--to tensorboard DIR` and `--to wandb DIR` (offline) write DIR/RUN, now or long after the run, from any
    machine that sees the store. Steps that a restart did again are told once; with `--follow`, as they came.
    """
    if follow and tool is None:
        raise ConfigurationError("`--follow` needs somewhere to write to", hint="add `--to tensorboard DIR`")
    opened = existing_store(store)
    name = find_run(opened, run)
    _check_step(opened, name, step)
    reader = MetricReader(opened.url, name, warn=lambda text: click.echo(printable(text), err=True))
    if tool is not None:
        count = _export(opened, name, reader, step, tool, follow=follow)
        if as_json:
            write_json({"run": name, "tool": tool[0], "folder": str(tool[1] / name), "points": count})
        else:
            click.echo(f"{count} points written to {tool[1] / name}" if count else _none(name, step), err=True)
        return
    told = by_name(standing_points(reader.poll(step)))
    if as_json:
        steps = [{"name": each, "metrics": [point.to_json() for point in points]} for each, points in told.items()]
        write_json({"run": name, "steps": steps})
        return
    if not told:
        click.echo(_none(name, step), err=True)
    for each, points in told.items():
        stdout().print(printable(each), style="bold")
        stdout().print(_table(points))


def _export(
    store: Store, run: str, reader: MetricReader, step: str | None, tool: tuple[str, Path], *, follow: bool
) -> int:
    """Write the points there are, with `follow` until the run is over; return how many."""
    kind, folder = tool
    writer = WRITERS[kind](folder, run)
    try:
        if follow:
            return _follow(store, run, reader, step, writer)
        points = standing_points(reader.poll(step))
        writer.write(points)
        return len(points)
    finally:
        writer.close()


def _follow(store: Store, run: str, reader: MetricReader, step: str | None, writer: MetricWriter) -> int:
    pulse, pause, count = Pulse(store, run), threading.Event(), 0
    goes_on, answered = True, time.monotonic()
    while goes_on:
        try:
            is_live = pulse.state(read_record(store, run)) in ("running", "waiting")
            points = reader.poll(step)
            goes_on, answered = is_live, time.monotonic()
        except StoreError:  # it may stumble: what is left out now comes with the next look
            if time.monotonic() - answered > PATIENCE_SECONDS:
                raise
            points = []
        writer.write(points)
        count += len(points)
        pause.wait(POLL_SECONDS if goes_on else 0)
    return count


def _check_step(store: Store, run: str, step: str | None) -> None:
    names = list(run_rows(read_record(store, run) or {}).rows)
    if step is not None and names and step not in names:
        hint = did_you_mean(step, names) or f"its steps are {', '.join(names)}"
        raise ConfigurationError(f"run {run} has no step `{step}`", hint=hint)


def _none(run: str, step: str | None) -> str:
    return f"no step of run {run} has recorded a number" if step is None else f"step {step} has recorded no number"


def _table(points: Sequence[Point]) -> Table:
    columns = list(dict.fromkeys(name for point in points for name in point.values))
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("step", *columns):
        table.add_column(printable(heading), justify="right", overflow="fold")
    for point in points:
        cells = (_number(name, point.values[name]) if name in point.values else "" for name in columns)
        table.add_row(str(point.at), *cells)
    return table


def _number(name: str, value: float) -> str:
    if name.endswith("_bytes") and math.isfinite(value):
        return format_size(int(value))
    return f"{value:,}" if isinstance(value, int) else f"{value:,.0f}" if 1000 <= value < math.inf else f"{value:.4g}"
