"""`marin status`: how a run stands, from any machine that sees the store."""

from typing import Any

import click
from rich.table import Table
from rich.text import Text

from marin.base.errors import ConfigurationError
from marin.base.text import printable
from marin.base.units import format_count, format_seconds
from marin.cli.follow import draw_error, next_command
from marin.cli.options import common_options, existing_store, stderr, stdout, styled_state, write_json
from marin.store import Store
from marin.view.moments import moment_text
from marin.view.standing import Standing, not_begun, standing

EPILOG = """\b
Examples:
  marin status
  marin status 20261201-134501-7f3a --json"""


@click.command(epilog=EPILOG)
@click.argument("run", required=False)
@common_options
def command(run: str | None, store: str, as_json: bool, traceback: bool) -> None:
    """Show how RUN stands; the newest one when none is named. Times are UTC.

    `--json` has all that the text has, and of each step what `marin run --json` has.
    """
    opened = existing_store(store)
    stands = standing(opened, find_run(opened, run))
    if as_json:
        write_json(status_json(opened, stands, store))
        return
    _draw(stands)
    draw_error(stands)
    if again := _next(opened, stands, store):
        stderr().print(printable(f"to go on: {again}"), soft_wrap=True)


def status_json(store: Store, stands: Standing, option: str) -> dict[str, Any]:
    """Return the object that `marin status --json` and `marin watch --json` show."""
    return stands.to_json(_next(store, stands, option))


def _next(store: Store, stands: Standing, option: str) -> str | None:
    """Return the command that continues a run which is over and not done."""
    known = stands.record.get("target") or stands.submission
    over = stands.state in ("lost", "failed", "stopped")
    return next_command(store, stands.run, stands.record, option) if over and known else None


def find_run(store: Store, run: str | None) -> str:
    """Return a run's id from its beginning, the newest when none is given; ConfigurationError when there is none."""
    runs = store.runs()
    found = [name for name in runs if run is None or name.startswith(run)]
    if not found:
        hint = f"the newest are {', '.join(runs[:3])}" if runs else "run a pipeline first"
        raise ConfigurationError(f"the store has no run {run or ''}".rstrip(), where=store.url, hint=hint)
    return found[0]


def _draw(stands: Standing) -> None:
    out = stdout()
    progress, now = stands.progress, stands.now
    times = {
        "started": stands.record.get("started"),
        "finished": stands.record.get("finished"),
        "last event": None if stands.record.get("finished") else progress.last,
    }
    tail = "".join(f", {what} {moment_text(str(at))}" for what, at in times.items() if at)
    out.print(Text.assemble(f"run {stands.run}: ", styled_state(stands.state), tail), soft_wrap=True)
    if progress.rows:
        out.print(_table(stands))
    for row in progress.rows.values():
        if detail := row.detail or row.slowest(now):
            out.print(printable(f"{row.name}: {detail}"), soft_wrap=True)
        for prompt, (step, completion) in row.samples.items():
            out.print(printable(f"{row.name}, step {step}: {prompt!r} is continued by {completion!r}"), soft_wrap=True)
    if stands.damage:
        out.print(Text.assemble(("damaged: ", "yellow"), printable(stands.damage)), soft_wrap=True)
    sent, stop = stands.submission, stands.stop
    if sent is not None and stands.state == "waiting":
        out.print(printable(not_begun(sent)), soft_wrap=True)
    elif sent is not None:
        text = f"submitted {moment_text(sent.at)} as Ray job {sent.ray_job} to {sent.address}"
        out.print(printable(text), soft_wrap=True)
    if stop is not None and stands.state in ("running", "waiting"):
        how = "stopping at once" if stop.now else "stopping"
        out.print(printable(f"{how}: {stop.user} asked for it {moment_text(stop.asked)}"), soft_wrap=True)


def _table(stands: Standing) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("step", "state", "progress", "time", "attempts"):
        table.add_column(heading, overflow="fold")
    for row in stands.progress.rows.values():
        counts = f"{format_count(row.completed)}/{format_count(row.total)} {row.unit}" if row.total else ""
        seconds = row.seconds(stands.now)
        took = format_seconds(seconds) if row.started or seconds else ""
        table.add_row(printable(row.name), styled_state(row.state), counts, took, str(row.attempts or ""))
    return table
