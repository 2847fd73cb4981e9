"""`marin show`: one artifact, or one run."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from marin.base.units import format_seconds, format_size
from marin.cli import status_verb
from marin.cli.options import common_options, existing_store, read_from_option, stdout, write_json
from marin.graph.explain import plain
from marin.store import Manifest, Store
from marin.view.artifacts import describe, find_artifacts, small_value

EPILOG = """\b
Examples:
  marin show export
  marin show 7f3a12bc --json"""

_OTHERS = 4


@click.command(epilog=EPILOG)
@click.argument("what")
@read_from_option
@common_options
@click.pass_context
def command(
    ctx: click.Context, what: str, read_from: tuple[str, ...], store: str, as_json: bool, traceback: bool
) -> None:
    """Show WHAT: a run's id, a step, the start of a fingerprint, or an artifact's path."""
    opened = existing_store(store, read_from)
    if "-" in what and any(run.startswith(what) for run in opened.runs()):
        ctx.invoke(status_verb.command, run=what, store=store, as_json=as_json, traceback=traceback)
        return
    manifest, *others = find_artifacts(opened, what)
    record = describe(opened, manifest)
    if as_json:
        write_json({**record, "others": [{"fingerprint": each.fingerprint, "at": each.finished} for each in others]})
        return
    _draw(stdout(), opened, manifest, record, others)


def _draw(
    out: Console, store: Store, manifest: Manifest, record: Mapping[str, Any], others: Sequence[Manifest]
) -> None:
    made = record["produced"]
    title = Text.assemble((record["type"], "bold"), f" of {record['step']}, {format_size(record['bytes'])}")
    out.print(title, soft_wrap=True)
    if others:
        out.print(f"  newest       of {len(others) + 1}; others: {_named(others)}", soft_wrap=True)
    out.print(f"  fingerprint  {record['fingerprint']}\n  digest       {record['digest']}", soft_wrap=True)
    out.print(f"  folder       {record['artifact']}", soft_wrap=True)
    took = format_seconds(made["seconds"])
    commit = f", commit {made['commit'][:12]}" if made["commit"] else ""
    out.print(f"  made         {made['at']} by {made['user']}@{made['host']} in {took}, run {made['run']}{commit}")
    for each in record["blessed"]:
        out.print(f"  blessed      changed code {each['now'][:8]} by {each['user']} at {each['at']}: {each['reason']}")
    if record["metrics"]:
        out.print("  numbers      " + ", ".join(f"{name} {value:.6g}" for name, value in record["metrics"].items()))
    for pin in record["pinned"]:
        out.print(f"  pinned       {pin['name']} by {pin['user']}{': ' + pin['reason'] if pin['reason'] else ''}")
    value = small_value(store, manifest)
    if value is not None:
        out.print(f"  value        {value}", soft_wrap=True)
    for parent in manifest.parents:
        out.print(f"  parent       {parent.path}: {parent.step} {parent.fingerprint[:8]}", soft_wrap=True)
    for file in manifest.files:
        out.print(f"  file         {file.path}  {format_size(file.size)}  {file.url}", soft_wrap=True)
    if manifest.shards:
        out.print(f"  shards       {len(manifest.shards)}, {format_size(manifest.size)}")
    config = (record["recipe"] or {}).get("config", {})
    if config:
        out.print("  configuration")
    for name, value in config.items():
        out.print(f"    {name:<12} {json.dumps(plain(value), ensure_ascii=False)[:160]}", soft_wrap=True)


def _named(others: Sequence[Manifest]) -> str:
    """Return which other results there are, the newest first."""
    shown = [f"{each.fingerprint[:8]} made {each.finished[:16].replace('T', ' ')}" for each in others[:_OTHERS]]
    more = f" and {len(others) - _OTHERS} more" if len(others) > _OTHERS else ""
    return ", ".join(shown) + more
