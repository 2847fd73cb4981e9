"""Errors as people read them: what, where, hint; the user's frame first, framework frames folded."""

import json as jsonlib
import os
import sys
import sysconfig
import traceback as tracebacks
from pathlib import Path

import click

import marin
from marin.base.errors import ConfigurationError, MarinError
from marin.cli import target

_PACKAGE = str(Path(marin.__file__).parent)
_LIBRARY = sysconfig.get_path("stdlib")


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
    click.echo(f"{paint('error:', 'red')} {what}", err=True)
    for line in filter(None, where.splitlines()):
        click.echo(f"  at   {line}", err=True)
    if hint:
        click.echo(f"{paint('hint:', 'cyan')} {hint}", err=True)


def paint(text: str, colour: str) -> str:
    """Return text in a colour, for click.echo; plain where NO_COLOR is set, which click does not read."""
    return text if os.environ.get("NO_COLOR") else click.style(text, fg=colour)


def render_unexpected(error: BaseException, *, json: bool, traceback: bool) -> int:
    """Write an error that nobody foresaw: where it is in the user's code first, or that it is marin's fault.

    What a target raises while it is imported or built is wrong configuration, hence exit code 2.
    """
    frames = tracebacks.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not _is_framework(frame.filename)]
    where = own[-1] if own else frames[-1]
    place = f"{where.filename}:{where.lineno} in {where.name}"
    what = f"{type(error).__name__}: {error}"
    if own and any(frame.filename == target.__file__ for frame in frames):
        wrong: MarinError = ConfigurationError(what, where=place, hint="mend that line; --traceback shows the rest")
    elif own:
        wrong = MarinError(what, where=place, hint="--traceback shows the rest")
    else:
        wrong = MarinError(what, where=place, hint="this is a fault of marin: please report it with --traceback")
    if traceback:
        tracebacks.print_exception(error, file=sys.stderr)
    return render_error(wrong, json=json)


def _is_framework(file: str) -> bool:
    libraries = file.startswith((_PACKAGE, _LIBRARY, "<")) or "site-packages" in file
    return libraries or Path(file).name == "marin"
