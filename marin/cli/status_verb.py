"""`marin status`: how a run stands, from any machine that sees the store."""

from datetime import UTC, datetime
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from marin.base.errors import ConfigurationError
from marin.base.units import format_count, format_seconds
from marin.cli.follow import draw_error, next_command
from marin.cli.options import common_options, existing_store, stdout, styled_state, write_json
from marin.store import EventReader, Store, read_stop, read_submission
from marin.view.liveness import run_state
from marin.view.progress import RunProgress

EPILOG = """\b
Examples:
  marin status
  marin status 20261201-134501-7f3a --json"""


@click.command(epilog=EPILOG)
@click.argument("run", required=False)
@common_options
def command(run: str | None, store: str, as_json: bool, traceback: bool) -> None:
    """Show how RUN stands; the newest one when none is named."""
    opened = existing_store(store)
    name = find_run(opened, run)
    found = opened.read_run(name)
    record = found or {}
    progress = run_progress(opened, name, record)
    state = run_state(opened, name, found)
    sent, stop = read_submission(opened.url, name), read_stop(opened.url, name)
    now = str(record.get("finished") or (progress.last if state == "lost" else datetime.now(UTC).isoformat()))
    if as_json:
        steps = [row.to_json(now) for row in progress.rows.values()]
        job = {"ray_job": sent.ray_job if sent else None, "stop_asked": stop["asked"] if stop else None}
        write_json({"run": name, "state": state, "store": opened.url, **job, "steps": steps})
        return
    _draw(name, state, record, progress, now)
    draw_error(record)
    if sent is not None:
        click.echo(f"submitted {sent.at} to {sent.address} as Ray job {sent.ray_job}")
    if stop is not None and state in ("running", "waiting"):
        click.echo(f"stopping: {stop['user']} asked for it {stop['asked']}")
    if state in ("lost", "failed", "stopped") and (record.get("target") or sent):
        click.echo(f"to go on: {next_command(opened, name, record, store)}", err=True)


def find_run(store: Store, run: str | None) -> str:
    """Return a run's id from its beginning, the newest when none is given; ConfigurationError when there is none."""
    runs = store.runs()
    found = [name for name in runs if run is None or name.startswith(run)]
    if not found:
        hint = f"the newest are {', '.join(runs[:3])}" if runs else "run a pipeline first"
        raise ConfigurationError(f"the store has no run {run or ''}".rstrip(), where=store.url, hint=hint)
    return found[0]


def run_progress(store: Store, run: str, record: dict[str, Any]) -> RunProgress:
    """Return a run's rows, folded from its events."""
    steps = record.get("steps") or []
    progress = RunProgress.of((str(step.get("name")), str(step.get("step"))) for step in steps)
    progress.apply(EventReader(store.url, run).poll())
    return progress


def _draw(name: str, state: str, record: dict[str, Any], progress: RunProgress, now: str) -> None:
    out = stdout()
    started = f", started {record['started']}" if record.get("started") else ""
    tail = started + (f", last event {progress.last[:19]}" if progress.last else "")
    out.print(Text.assemble(f"run {name}: ", styled_state(state), tail), soft_wrap=True)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("step", "state", "progress", "time", "attempts"):
        table.add_column(heading, overflow="fold")
    for row in progress.rows.values():
        counts = f"{format_count(row.done)}/{format_count(row.total)} {row.unit}" if row.total else ""
        took = format_seconds(row.seconds(now)) if row.started else ""
        table.add_row(row.name, styled_state(row.state), counts, took, str(row.attempts or ""))
    out.print(table)
    for row in progress.rows.values():
        if detail := row.detail or row.slowest(now):
            out.print(f"{row.name}: {detail}", soft_wrap=True)
