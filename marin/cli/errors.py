"""Errors as people read them: what, where, hint; the user's frame first, framework frames folded."""

import json as jsonlib
import sys
import traceback as tracebacks
from pathlib import Path

import click

import marin
from marin.base.errors import MarinError

_PACKAGE = str(Path(marin.__file__).parent)


def render_error(error: MarinError, *, json: bool, traceback: bool = False) -> int:
    """Write an error to standard error (and as JSON to standard output); return the exit code."""
    if traceback:
        tracebacks.print_exception(error, file=sys.stderr)
    if json:
        record = {"type": type(error).__name__, "message": error.what, "where": error.where, "hint": error.hint}
        click.echo(jsonlib.dumps({"schema": 1, "error": record}))
    write_error(error.what, error.where, error.hint)
    return error.exit_code


def write_error(what: str, where: str, hint: str) -> None:
    """Write `error:`, `at` and `hint:` lines to standard error."""
    click.echo(f"{click.style('error:', fg='red')} {what}", err=True)
    for line in filter(None, where.splitlines()):
        click.echo(f"  at   {line}", err=True)
    if hint:
        click.echo(f"{click.style('hint:', fg='cyan')} {hint}", err=True)


def render_unexpected(error: BaseException, *, json: bool, traceback: bool) -> int:
    """Write an error that nobody foresaw: where it is in the user's code first, or that it is marin's fault."""
    frames = tracebacks.extract_tb(error.__traceback__)
    own = [
        frame for frame in frames if not frame.filename.startswith(_PACKAGE) and "site-packages" not in frame.filename
    ]
    own = [
        frame for frame in own if not frame.filename.startswith(sys.base_prefix) and not frame.filename.startswith("<")
    ]
    own = [frame for frame in own if Path(frame.filename).name != "marin"]
    where = own[-1] if own else frames[-1]
    hint = "--traceback shows the rest" if own else "this is a fault of marin: please report it with --traceback"
    place = f"{where.filename}:{where.lineno} in {where.name}"
    return render_error(
        MarinError(f"{type(error).__name__}: {error}", where=place, hint=hint), json=json, traceback=traceback
    )
