"""What a run leaves on the screen: a table of its steps, curves, scores, completions, and what to do next."""

from collections.abc import Sequence
from typing import Any

import click
from rich.table import Table

from marin.base.text import one_line, printable
from marin.base.units import format_seconds
from marin.cli.errors import paint, write_error
from marin.cli.options import stderr, stdout, store_arguments, styled_state
from marin.cli.plot import draw_curve
from marin.graph import artifact
from marin.run.result import RunResult, StepResult
from marin.store import Store
from marin.view.progress import RunProgress

_SHOWN_ROWS, _SHOWN_CHARACTERS = 6, 240
_SMALL_BYTES = 1_000_000


def draw_summary(result: RunResult, progress: RunProgress, store: Store) -> None:
    """Write the table, and for what has just been made its curve and rows."""
    draw_table(result)
    for step in result.steps:
        row = progress.rows.get(step.name)
        if step.state == "done" and row is not None:
            lines = draw_curve(row.curve)
            if lines:
                click.echo(f"\n{row.curve_of.replace('_', ' ')} of {step.name}\n" + "\n".join(lines))
            _draw_completions(step, store)


def draw_table(result: RunResult) -> None:
    """Write one row a step."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("step", "state", "seconds", "shards", "output", "numbers"):
        table.add_column(heading, overflow="fold", justify="right" if heading == "seconds" else "left")
    for step in result.steps:
        total, reused = step.shards.get("total", 0), step.shards.get("reused", 0)
        shards = f"{total} ({reused} reused)" if reused else f"{total}" if total else ""
        seconds = f"{step.seconds:.1f}" if step.state in ("done", "failed") else ""
        digest = (step.digest or "")[:8]
        table.add_row(printable(step.name), styled_state(step.state), seconds, shards, digest, _numbers(step.metrics))
    stdout().print(table)


_MOST_NUMBERS = 3
_SHOWN_NUMBERS = ("bits_per_byte", "gzip_bits_per_byte", "xz_bits_per_byte", "perplexity", "loss")


def _numbers(metrics: Any) -> str:  # Any: numbers by name
    numbers = {name: value for name, value in metrics.items() if isinstance(value, int | float)}
    shown = [name for name in _SHOWN_NUMBERS if name in numbers] or list(numbers)[:_MOST_NUMBERS]
    return ", ".join(f"{name.replace('_', ' ')} {_number(numbers[name])}" for name in shown)


def _number(value: float) -> str:
    return f"{value:.3f}" if 0.01 <= abs(value) < 10_000 and value % 1 else f"{value:.6g}"


def _draw_completions(step: StepResult, store: Store) -> None:
    """Write the rows of a small table with the columns prompt and completion."""
    if step.fingerprint is None:
        return
    manifest = store.find([(step.step, step.fingerprint)]).get(step.fingerprint)
    if manifest is None or manifest.artifact != artifact.Table.__name__:
        return
    if manifest.size > _SMALL_BYTES:
        return
    rows = artifact.Table(store.contents(manifest)).to_rows()
    if not rows or not {"prompt", "completion"} <= set(rows[0]):
        return
    click.echo(f"\n{step.name}")
    for row in rows[:_SHOWN_ROWS]:
        prompt, completion = printable(str(row["prompt"])), printable(str(row["completion"])[:_SHOWN_CHARACTERS])
        click.echo("\n".join(f"  {line}" for line in (paint(prompt, "cyan") + completion).splitlines()))
        click.echo("  " + "-" * 24)


def draw_notes(progress: RunProgress) -> None:
    """Write what was said of results that were there already, such as that older source made them."""
    for row in progress.rows.values():
        if row.state == "cached" and row.detail:
            stderr().print(printable(f"{row.name}: {row.detail}"), style="yellow", soft_wrap=True)


def draw_failures(result: RunResult, command: str, store: str) -> None:
    """Write one root cause for each failed branch, what is kept, and the next command."""
    for step in result.steps:
        if step.state == "failed":
            error = step.error or {}
            tries = f"after {step.attempts} attempts" if step.attempts > 1 else ""
            where = "\n".join(filter(None, (str(error.get("where") or ""), tries)))
            write_error(f"step {step.name} failed: {error.get('message')}", where, str(error.get("hint") or ""))
    blocked: dict[str, list[str]] = {}
    for step in result.steps:
        if step.state == "blocked":
            blocked.setdefault(str((step.error or {}).get("message")), []).append(step.name)
    kept = sum(step.state in ("cached", "done") for step in result.steps)
    for why, names in blocked.items():
        more = f" and {len(names) - _SHOWN_ROWS} more" if len(names) > _SHOWN_ROWS else ""
        click.echo(one_line(f"blocked: {', '.join(names[:_SHOWN_ROWS])}{more}: {why}"), err=True)
    click.echo(f"kept: {kept} of {len(result.steps)} steps, and every finished shard and checkpoint", err=True)
    click.echo(printable(f"logs: marin logs {result.run}{store_arguments(store)}\nthen: {command}"), err=True)


def draw_stopped(command: str) -> None:
    """Write that nothing is lost, and the command that goes on."""
    click.echo(printable(f"stopped: what was finished is kept\nthen: {command}"), err=True)


def draw_next(result: RunResult, command: str, store: str) -> None:
    """Write where the results are and three next commands."""
    err = stderr()
    option = store_arguments(store)
    exported = next((step for step in result.steps if step.step == "export" and step.fingerprint), result.steps[-1])
    show = (exported.fingerprint or "")[:8]
    err.print(f"\nstore  {result.store}\nrun    {result.run}", soft_wrap=True)
    err.print("next   change an option and run again: only what depends on it runs")
    for line in (f"marin plan {command}", f"marin show {show}{option}", f"marin ls{option}"):
        err.print(f"         {line}", soft_wrap=True)


def took(result: RunResult, seconds: float) -> str:
    """Return a closing line: how many steps were done and cached, and how long it took."""
    states: Sequence[str] = [step.state for step in result.steps]
    parts = [f"{states.count(state)} {state}" for state in dict.fromkeys(states)]
    return f"{', '.join(parts) or 'ended'} in {format_seconds(seconds)}"
