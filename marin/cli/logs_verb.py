"""`marin logs`: what the workers of a run wrote, by step and rank."""

import click

from marin import fs
from marin.base.errors import ConfigurationError, did_you_mean
from marin.cli.options import common_options, existing_store, write_json
from marin.cli.status_verb import find_run, run_progress
from marin.store import EventReader, Store

EPILOG = """\b
Examples:
  marin logs
  marin logs 20261201-134501-7f3a --step train --rank 0"""


@click.command(epilog=EPILOG)
@click.argument("run", required=False)
@click.option("--step", help="Only this step, by its name in the plan.")
@click.option("--rank", type=int, help="Only this rank of a gang.")
@common_options
def command(run: str | None, step: str | None, rank: int | None, store: str, as_json: bool, traceback: bool) -> None:
    """Write the logs of RUN's attempts; of the newest run when none is named."""
    opened = existing_store(store)
    name = find_run(opened, run)
    logs = [log for log in attempt_logs(opened, name, step) if rank is None or log["file"] == f"rank-{rank}.log"]
    if as_json:
        write_json({"run": name, "logs": logs})
        return
    for log in logs:
        click.echo(click.style(f"== {log['name']} {log['attempt']} {log['file']}", bold=True))
        click.echo(log["text"].rstrip())
    if not logs:
        click.echo(f"no worker of run {name} has written anything", err=True)


def attempt_logs(store: Store, run: str, step: str | None) -> list[dict[str, str]]:
    """Return the log files of every attempt that the run's events name, in order."""
    names = list(run_progress(store, run, store.read_run(run) or {}).rows)
    if step is not None and step not in names:
        hint = did_you_mean(step, names) or f"its steps are {', '.join(names)}"
        raise ConfigurationError(f"run {run} has no step `{step}`", hint=hint)
    attempts: dict[str, tuple[str, str]] = {}
    for event in EventReader(store.url, run).poll():
        who = [str(event.get(key) or "") for key in ("name", "step", "fingerprint", "attempt")]
        if all(who) and step in (None, who[0]):
            attempts.setdefault(who[3], (who[0], store.attempt_folder(*who[1:])))
    return [
        {"name": name, "attempt": attempt, "file": file, "text": text}
        for attempt, (name, folder) in attempts.items()
        for file in fs.list_folder(folder)
        if file.endswith((".log", ".txt")) and (text := fs.read(fs.join(folder, file)).decode("utf-8", "replace"))
    ]
