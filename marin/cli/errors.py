"""Errors as people read them: what, where, hint; the user's frame first, framework frames folded.

Invariant: an error is one `error:` line, an `at` line a place and one `hint:` line, and whatever names and messages it
holds, a terminal only shows them.
"""

import logging
import os
import sysconfig
import traceback as tracebacks
from pathlib import Path

import click

import marin
from marin.base.errors import ConfigurationError, Interrupted, MarinError
from marin.base.text import one_line, printable
from marin.cli import target
from marin.cli.json_text import write_json

_PACKAGE = str(Path(marin.__file__).parent)
_LIBRARY = sysconfig.get_path("stdlib")


def render_error(error: MarinError, *, json: bool, traceback: bool = False) -> int:
    """Write an error to standard error (and as JSON to standard output); return the exit code."""
    if traceback:
        _write_traceback(error)
    error = _placed(error)
    if json:
        record = {"type": type(error).__name__, "message": error.what, "where": error.where, "hint": error.hint}
        write_json({**error.ids, "error": record})
    write_error(error.what, error.where, error.hint)
    return error.exit_code


def _write_traceback(error: BaseException) -> None:
    click.echo(printable("".join(tracebacks.format_exception(error))), err=True, nl=False)


class WarningLine(logging.Formatter):
    """A warning as a line that a terminal only shows."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        return one_line(f"warning: {record.getMessage()}")


class SaidOnce(logging.Filter):
    """Lets each warning through once: a damaged record is met by every part of a command that reads it."""

    def __init__(self) -> None:
        super().__init__()
        self._said: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether this has not been said yet."""
        text = record.getMessage()
        is_new = text not in self._said
        self._said.add(text)
        return is_new


def write_error(what: str, where: str, hint: str) -> None:
    """Write `error:`, `at` and `hint:` lines to standard error."""
    click.echo(f"{paint('error:', 'red')} {one_line(what)}", err=True)
    for line in filter(None, printable(where).split("\n")):
        click.echo(f"  at   {line}", err=True)
    if hint:
        click.echo(f"{paint('hint:', 'cyan')} {one_line(hint)}", err=True)


def paint(text: str, colour: str) -> str:
    """Return text in a colour, for click.echo; plain where NO_COLOR is set, which click does not read."""
    return text if os.environ.get("NO_COLOR") else click.style(text, fg=colour)


def render_unexpected(error: BaseException, *, json: bool, traceback: bool) -> int:
    """Write an error that nobody foresaw."""
    if traceback:
        _write_traceback(error)
    return render_error(as_marin_error(error), json=json)


def _placed(error: MarinError) -> MarinError:
    """Add the line of the user's code that an error came from while a target was imported or built."""
    frames = tracebacks.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not _is_framework(frame.filename)]
    if own and frames[-1] is not own[-1] and any(frame.filename == target.__file__ for frame in frames):
        place = f"{own[-1].filename}:{own[-1].lineno}"
        error.where = f"{error.where}\n{place}" if error.where else place
    return error


def as_marin_error(error: BaseException) -> MarinError:
    """Return what is said of an error: where it is in the user's code first, or that it is marin's fault.

    What a target raises while it is imported or built is wrong configuration, hence exit code 2.
    """
    if isinstance(error, MarinError):
        return error
    if isinstance(error, KeyboardInterrupt):
        return Interrupted("the run was interrupted before it began", hint="start it again")
    frames = tracebacks.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not _is_framework(frame.filename)]
    where = own[-1] if own else frames[-1]
    place = f"{where.filename}:{where.lineno} in {where.name}"
    what = f"{type(error).__name__}: {error}"
    if own and any(frame.filename == target.__file__ for frame in frames):
        return ConfigurationError(what, where=place, hint="mend that line; --traceback shows the rest")
    if own:
        return MarinError(what, where=place, hint="--traceback shows the rest")
    return MarinError(what, where=place, hint="this is a fault of marin: please report it with --traceback")


def _is_framework(file: str) -> bool:
    libraries = file.startswith((_PACKAGE, _LIBRARY, "<")) or "site-packages" in file
    return libraries or Path(file).name == "marin"
