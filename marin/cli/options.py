"""Options and small habits that verbs share."""

import errno
import io
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from typing import Any, TextIO, TypeVar

import click
from rich.console import Console
from rich.text import Text

from marin.base.errors import StoreError
from marin.cli import json_text
from marin.run.stopping import GRACE_SECONDS
from marin.store import Store

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_STORE = ".marin"
EXIT_CODES = {"done": 0, "failed": 1, "lost": 1, "stopped": 130}
"""What a command that runs or follows a run exits with, by the run's state."""
PIPE_WIDTH = 10_000

write_json = json_text.write_json

store_option = click.option(
    "--store",
    default=lambda: os.environ.get("MARIN_STORE") or DEFAULT_STORE,
    help="Root URL of the store.",
    metavar="URL",
)
read_from_option = click.option(
    "--read-from",
    "read_from",
    multiple=True,
    help="Read-only store to ask next; repeatable.",
    metavar="URL",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Write JSON to standard output.")
on_drift_option = click.option(
    "--on-drift",
    type=click.Choice(["warn", "rerun", "fail"]),
    default=lambda: "fail" if os.environ.get("CI", "").lower() not in ("", "0", "false") else "warn",
    help="On changed source under a declared version.",
)
on_busy_option = click.option(
    "--on-busy",
    type=click.Choice(["wait", "skip", "fail"]),
    default="wait",
    help="On a step that another run is making.",
)
pattern_option = click.option(
    "-k", "pattern", help="Only steps whose name matches, and what they need.", metavar="PATTERN"
)
grace_option = click.option(
    "--grace",
    type=click.FloatRange(min=0),
    default=GRACE_SECONDS,
    help="What a stop leaves to gangs and maps; 120.",
    metavar="SECONDS",
)
traceback_option = click.option("--traceback", is_flag=True, help="Show whole tracebacks.")


def common_options(function: F) -> F:
    """Add --store, --json and --traceback."""
    return store_option(json_option(traceback_option(function)))


def store_arguments(store: str, read_from: Sequence[str] = ()) -> str:
    """Return ` --store URL` for a next command, nothing for the store that a command takes by itself."""
    own = "" if store == DEFAULT_STORE else f" --store {shlex.quote(store)}"
    return own + "".join(f" --read-from {shlex.quote(url)}" for url in read_from)


class _Console(Console):
    """Leaves a reader that has gone to the command line, as everything else that writes does."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def stdout() -> Console:
    """Return the console for data."""
    return _console(sys.stdout)


def stderr() -> Console:
    """Return the console for everything else."""
    return _console(sys.stderr)


def _console(file: TextIO | None) -> Console:
    # Without markup: a user's text may hold `[red]` or `[/]`. A pipe has no width: lines stay whole for grep.
    # What was closed before the start (`>&-`) is None.
    width = None if file and file.isatty() else PIPE_WIDTH
    return _Console(file=file or io.StringIO(), highlight=False, markup=False, emoji=False, width=width)


def existing_store(url: str, read_from: Sequence[str] = ()) -> Store:
    """Open a store to read; StoreError when there is none, or none of those to read from."""
    store = Store.open(url, write=False, read_from=read_from)
    if not store.exists():
        raise StoreError(
            f"there is no store at {store.url}",
            where=store.url,
            hint="run a pipeline first, or name another with --store",
        )
    return store


STATE_STYLES = {
    "cached": "green",
    "done": "green",
    "running": "cyan",
    "run": "yellow",
    "unknown": "yellow",
    "waiting": "dim",
    "failed": "red",
    "blocked": "magenta",
    "stopped": "yellow",
    "lost": "red",
}


def styled_state(state: str) -> Text:
    """Return a state with its colour."""
    return Text(state, style=STATE_STYLES.get(state, ""))
