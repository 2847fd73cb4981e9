"""`marin show`: one artifact, or one run."""

import json

import click
from rich.text import Text

from marin.base.units import format_seconds, format_size
from marin.cli import status_verb
from marin.cli.options import common_options, existing_store, stdout, write_json
from marin.graph.explain import plain
from marin.view.artifacts import describe, find_artifacts, small_value

EPILOG = """\b
Examples:
  marin show export
  marin show 7f3a12bc --json"""


@click.command(epilog=EPILOG)
@click.argument("what")
@common_options
@click.pass_context
def command(ctx: click.Context, what: str, store: str, as_json: bool, traceback: bool) -> None:
    """Show WHAT: a run's id, a step, the start of a fingerprint, or an artifact's path."""
    opened = existing_store(store)
    if "-" in what and any(run.startswith(what) for run in opened.runs()):
        ctx.invoke(status_verb.command, run=what, store=store, as_json=as_json, traceback=traceback)
        return
    manifest = find_artifacts(opened, what)[0]
    record = describe(opened, manifest)
    if as_json:
        write_json(record)
        return
    out = stdout()
    made = record["produced"]
    title = Text.assemble((record["type"], "bold"), f" of {record['step']}, {format_size(record['bytes'])}")
    out.print(title, soft_wrap=True)
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
    value = small_value(opened, manifest)
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
