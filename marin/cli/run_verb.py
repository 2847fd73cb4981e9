"""`marin run`: plan and do. Running it again is resuming, and the first line says so."""

import fnmatch
import os
import shlex
import time

import click

from marin.base.errors import ConfigurationError, did_you_mean
from marin.cli.live import Follower, Lines, Screen, Tables
from marin.cli.options import DEFAULT_STORE, common_options, stderr, write_json
from marin.cli.summary import draw_failures, draw_next, draw_summary, draw_table, is_terminal, took
from marin.cli.target import Target, TargetCommand, build_target
from marin.graph.plan import Plan
from marin.run.api import BackendName, plan, run_plan
from marin.run.result import RunResult
from marin.store import Store, new_run_id
from marin.view.progress import RunProgress

EPILOG = """\b
Examples:
  marin run pipelines/quickstart.py
  marin run pipelines/quickstart.py --lr 1e-3 --address 10.0.0.1:6379"""

EXIT_CODES = {"done": 0, "failed": 1, "stopped": 130}


@click.command(
    cls=TargetCommand, context_settings={"ignore_unknown_options": True, "allow_extra_args": True}, epilog=EPILOG
)
@click.argument("target")
@click.option("--address", default=lambda: os.environ.get("RAY_ADDRESS"), help="Ray cluster; none: one of its own.")
@click.option("--backend", type=click.Choice(["ray", "inline"]), default="ray", help="Where steps run.")
@click.option("-k", "pattern", help="Only steps whose name matches, and what they need.", metavar="PATTERN")
@common_options
@click.pass_context
def command(
    ctx: click.Context,
    target: str,
    address: str | None,
    backend: BackendName,
    pattern: str | None,
    store: str,
    as_json: bool,
    traceback: bool,
) -> int:
    """Run TARGET; what is done is kept. Options behind TARGET are the pipeline's."""
    began = time.monotonic()
    built = build_target(target, ctx.args)
    planned = plan(built.steps, store=store)
    if pattern:
        planned = plan([step.step for step in planned.steps if step.name in matching(planned, pattern)], store=store)
    run = new_run_id()
    stderr().print(first_line(planned, run))
    progress = RunProgress.of((step.name, step.step.step_name()) for step in planned.steps)
    screen: Screen = Tables(stderr()) if is_terminal() and not as_json else Lines(stderr())
    all_cached = all(step.state == "cached" for step in planned.steps)
    labels = {"target": target, "options": list(ctx.args)}
    if all_cached:
        result = run_plan(planned, store=store, run=run, backend=backend, address=address, labels=labels)
    else:
        with Follower(Store.open(store, write=True).url, run, progress, screen):
            result = run_plan(planned, store=store, run=run, backend=backend, address=address, labels=labels)
    if as_json:
        write_json(result.to_json())
    else:
        _finish(result, progress, command_text(built, store), store, all_cached)
    stderr().print(took(result, time.monotonic() - began), style="bold")
    return EXIT_CODES[result.state]


def matching(planned: Plan, pattern: str) -> set[str]:
    """Return the names that match a glob pattern or contain the text."""
    names = [step.name for step in planned.steps]
    found = {name for name in names if fnmatch.fnmatch(name, pattern) or pattern in name}
    if not found:
        hint = did_you_mean(pattern, names) or f"its steps are {', '.join(names)}"
        raise ConfigurationError(f"no step matches `{pattern}`", hint=hint)
    return found


def first_line(planned: Plan, run: str) -> str:
    """Return what the run is: new, a continuation, or nothing to do."""
    total = len(planned.steps)
    cached = sum(step.state == "cached" for step in planned.steps)
    if cached == total:
        return f"nothing to do: all {total} steps are cached"
    return (
        f"run {run}: {cached} of {total} steps are cached, the rest continues"
        if cached
        else f"new run {run}: {total} steps"
    )


def command_text(built: Target, store: str) -> str:
    """Return target, options and store as they have to be typed again."""
    return built.command if store == DEFAULT_STORE else f"{built.command} --store {shlex.quote(store)}"


def _finish(result: RunResult, progress: RunProgress, command: str, store: str, all_cached: bool) -> None:
    if all_cached:
        draw_table(result)
    else:
        draw_summary(result, progress, Store.open(store, write=False))
    if result.state == "failed":
        draw_failures(result, f"marin run {command}", store)
    elif result.state == "stopped":
        click.echo(f"stopped: what was finished is kept; `marin run {command}` continues", err=True)
    else:
        draw_next(result, command, store)
