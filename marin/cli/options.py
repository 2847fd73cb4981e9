"""Options and small habits that verbs share."""

import json
import os
import sys
from collections.abc import Callable
from typing import Any, TextIO, TypeVar

import click
from rich.console import Console

from marin.base.errors import StoreError
from marin.store import Store

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_STORE = ".marin"
PIPE_WIDTH = 160

store_option = click.option(
    "--store",
    default=lambda: os.environ.get("MARIN_STORE") or DEFAULT_STORE,
    help="Root URL of the store.",
    metavar="URL",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Write JSON to standard output.")
traceback_option = click.option("--traceback", is_flag=True, help="Show whole tracebacks.")


def common_options(function: F) -> F:
    """Add --store, --json and --traceback."""
    return store_option(json_option(traceback_option(function)))


def write_json(record: Any) -> None:  # Any: JSON
    """Write a record to standard output."""
    click.echo(json.dumps({"schema": 1, **record}, indent=1, ensure_ascii=False))


def stdout() -> Console:
    """Return the console for data."""
    return _console(sys.stdout)


def stderr() -> Console:
    """Return the console for everything else."""
    return _console(sys.stderr)


def _console(file: TextIO) -> Console:
    # A pipe has no width: tables keep their lines whole for grep.
    return (
        Console(file=file, highlight=False) if file.isatty() else Console(file=file, highlight=False, width=PIPE_WIDTH)
    )


def existing_store(url: str) -> Store:
    """Open a store to read; StoreError when there is none."""
    store = Store.open(url, write=False)
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
}


def styled_state(state: str) -> str:
    """Return a state with its colour, for rich."""
    return f"[{STATE_STYLES.get(state, 'default')}]{state}[/]"
