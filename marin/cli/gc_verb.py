"""`marin gc`: free what nothing needs; a dry run unless `--apply` is given."""

import math
import time
from collections import Counter
from typing import Any

import click
from rich.table import Table

from marin import fs
from marin.base.errors import ConfigurationError
from marin.base.units import format_seconds, format_size
from marin.cli.options import common_options, existing_store, stdout, store_arguments, write_json
from marin.cli.status_verb import find_run
from marin.cli.ticker import Ticker
from marin.run.producer import this_producer
from marin.store import Store
from marin.store.gc.collect import GRACE_SECONDS, KEEP_DAYS, Collected, collect, survey
from marin.store.gc.verdict import Candidate, Verdict, policy_of

EPILOG = """\b
Examples:
  marin gc
  marin gc --apply --days 30"""

_ROWS = 30


class Duration(click.FloatRange):
    """A finite number: nan is smaller than nothing, and would keep nothing."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number; fails for nan and infinity."""
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is no number of days or seconds.", param, ctx)
        return number


@click.command(epilog=EPILOG)
@click.option("--apply", "applies", is_flag=True, help="Do it; without it nothing is changed.")
@click.option("--days", type=Duration(min=0), default=KEEP_DAYS, show_default=True, help="Keep newer runs.")
@click.option("--keep-runs", multiple=True, metavar="RUN", help="Keep a run's results, too; may be repeated.")
@click.option(
    "--grace",
    type=Duration(min=0),
    default=GRACE_SECONDS,
    metavar="SECONDS",
    help="Time between unlisting and deleting; 24 hours.",
)
@common_options
def command(
    applies: bool,
    days: float,
    keep_runs: tuple[str, ...],
    grace: float,
    store: str,
    as_json: bool,
    traceback: bool,
) -> None:
    """Show what no pin, live or recent run and no kept result needs, and its bytes.

    With --apply such results are unlisted; their files are deleted by the first
    `marin gc --apply` after the grace period. Until then a run that wants one, or
    `marin pin`, lists it again. What was never listed goes at once.
    """
    opened = existing_store(store)
    if not all(keep_runs):
        raise ConfigurationError("--keep-runs got an empty text", hint="name a run, such as `marin status` shows it")
    kept_runs = [find_run(opened, run) for run in keep_runs]

    def policy(now: float) -> Any:
        return policy_of(now, days=days, grace=grace, keep_runs=kept_runs)

    if not applies:
        verdict, done = survey(opened, policy(time.time())), None
    else:
        ticker = Ticker()
        done = collect(
            opened,
            policy,
            user=this_producer().user,
            progress=lambda what, number, total: ticker.say(f"{what}: {number} of {total}"),
        )
        ticker.close()
        verdict = done.verdict
    if as_json:
        write_json(_json(opened, verdict, done))
        return
    _draw(verdict, applied=applies)
    options = [f"--days {days:g}"] * (days != KEEP_DAYS) + [f"--keep-runs {run}" for run in kept_runs]
    options += [f"--grace {grace:g}"] * (grace != GRACE_SECONDS)
    again = f"{' '.join(['marin gc --apply', *options])}{store_arguments(store)}"
    _draw_next(done, grace, again, any_left=bool(verdict.candidates))


def _json(store: Store, verdict: Verdict, done: Collected | None) -> dict[str, Any]:
    return {
        "applied": done is not None,
        "candidates": [_candidate(store, each) for each in verdict.candidates],
        "bytes": verdict.bytes,
        "kept": dict(verdict.kept),
        "unlisted": done.unlisted if done else 0,
        "relisted": done.relisted if done else 0,
        "deleted": {"files": done.deleted if done else 0, "bytes": done.deleted_bytes if done else 0},
    }


def _candidate(store: Store, each: Candidate) -> dict[str, Any]:
    where = "artifact" if each.kind == "artifact" else "path"
    return {where: fs.join(store.url, each.path), "bytes": each.bytes, "reason": each.reason}


def _draw(verdict: Verdict, *, applied: bool) -> None:
    """Write the bytes first, then what they are, gathered by kind, step and reason."""
    out = stdout()
    number = len(verdict.candidates)
    out.print(f"{format_size(verdict.bytes)} in {number} thing{'s' * (number != 1)} that nothing needs", style="bold")
    counts: Counter[tuple[str, str, str]] = Counter()
    sizes: Counter[tuple[str, str, str]] = Counter()
    for each in verdict.candidates:
        row = (each.kind, each.step, each.reason)
        counts[row] += 1
        sizes[row] += each.bytes
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("size", "number", "what", "why"):
        table.add_column(heading, justify="right" if heading in ("size", "number") else "left", overflow="fold")
    rows = sorted(counts, key=lambda row: (-sizes[row], row))
    for row in rows[:_ROWS]:
        kind, step, reason = row
        table.add_row(format_size(sizes[row]), str(counts[row]), f"{kind} of {step}" if step else kind, reason)
    if rows:
        out.print(table)
    if len(rows) > _ROWS:
        out.print(f"and {len(rows) - _ROWS} more lines: --json has all")
    if verdict.kept:
        click.echo(f"kept: {', '.join(f'{n} {reason}' for reason, n in verdict.kept.most_common())}", err=True)


def _draw_next(done: Collected | None, grace: float, again: str, *, any_left: bool) -> None:
    """Say what was done, and the command that goes on."""
    if done is None:
        if any_left:
            click.echo(f"nothing was changed; to free it: {again}", err=True)
        return
    click.echo(f"deleted {done.deleted} files, {format_size(done.deleted_bytes)}", err=True)
    if done.relisted:
        click.echo(f"listed {done.relisted} again that something needs by now", err=True)
    if done.unlisted:
        click.echo(
            f"unlisted {done.unlisted} results and shards; their files go with the first `{again}` in"
            f" {format_seconds(grace)} or later",
            err=True,
        )
