"""`marin ls`: what the store holds."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click
from rich.table import Table

from marin.base.units import format_size
from marin.cli.options import common_options, existing_store, read_from_option, stdout, write_json
from marin.cli.plan_verb import change_text
from marin.graph.explain import Change
from marin.store import Manifest, Store
from marin.store.pins import readable_pins
from marin.view.artifacts import artifact_url, list_artifacts
from marin.view.causes import Key
from marin.view.results import changes_in_turn, several_of_a_step

EPILOG = """\b
Examples:
  marin ls
  marin ls train --json"""


@click.command(epilog=EPILOG)
@click.argument("step", required=False)
@read_from_option
@common_options
def command(step: str | None, read_from: tuple[str, ...], store: str, as_json: bool, traceback: bool) -> None:
    """List artifacts, the newest first; only those of STEP when it is named."""
    opened = existing_store(store, read_from)
    manifests = list_artifacts(opened, step)
    pinned: dict[Key, list[str]] = {}
    for each in (opened, *opened.upstreams):
        for pin in readable_pins(each.url):
            pinned.setdefault(Key(pin.step, pin.fingerprint), []).append(pin.name)
    changes = changes_in_turn(opened, manifests)
    if as_json:
        rows = [_json(opened, each, pinned, changes.get(each.fingerprint, ())) for each in manifests]
        write_json({"store": opened.url, "artifacts": rows})
    else:
        stdout().print(_table(opened, manifests, pinned, changes))


def _json(
    store: Store, each: Manifest, pinned: Mapping[Key, Sequence[str]], changes: Sequence[Change]
) -> dict[str, Any]:
    return {
        "step": each.step,
        "name": each.name,
        "fingerprint": each.fingerprint,
        "digest": each.digest,
        "type": each.artifact,
        "bytes": each.size,
        "artifact": artifact_url(store, each),
        "run": each.run,
        "user": each.producer.user,
        "at": each.finished,
        "pinned": pinned.get(Key(each.step, each.fingerprint), []),
        "changes": [change.to_json() for change in changes],
    }


def _table(
    store: Store,
    manifests: Sequence[Manifest],
    pinned: Mapping[Key, Sequence[str]],
    changes: Mapping[str, Sequence[Change]],
) -> Table:
    """Return the table; what tells several results of one step apart has columns only where there are several."""
    columns: dict[str, Callable[[Manifest], str]] = {"step": lambda each: each.step}
    several = several_of_a_step(manifests)
    if several:
        columns["name"] = lambda each: each.name
    columns |= {
        "fingerprint": lambda each: each.fingerprint[:8],
        "type": lambda each: each.artifact,
        "size": lambda each: format_size(each.size),
        "made": lambda each: each.finished[:16].replace("T", " "),
        "by": lambda each: each.producer.user,
    }
    if pinned:
        columns["pinned as"] = lambda each: ", ".join(pinned.get(Key(each.step, each.fingerprint), ()))
    if any(each.root not in ("", store.url) for each in manifests):
        columns["store"] = lambda each: each.root if each.root != store.url else ""
    if several:
        columns["change"] = lambda each: _change_text(changes.get(each.fingerprint, ()))
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in columns:
        table.add_column(heading, justify="right" if heading == "size" else "left")
    for each in manifests:
        table.add_row(*(cell(each) for cell in columns.values()))
    return table


def _change_text(changes: Sequence[Change]) -> str:
    """Return the first difference from the result of the step that was made before, and how many more there are."""
    if not changes:
        return ""
    return change_text(changes[0]) + (f" and {len(changes) - 1} more" if len(changes) > 1 else "")
