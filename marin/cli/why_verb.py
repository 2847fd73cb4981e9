"""`marin why`: the differences that make a step run, down to the first cause."""

import click
from rich.console import Console
from rich.text import Text

from marin.base.errors import ConfigurationError, did_you_mean
from marin.cli.options import common_options, read_from_option, stdout, styled_state, write_json
from marin.cli.plan_verb import change_text
from marin.cli.target import TargetCommand, build_target
from marin.graph.explain import Change
from marin.graph.plan import Plan, PlannedStep
from marin.run.api import plan
from marin.store import Store
from marin.store.blessed import blessings
from marin.view.causes import Causes

EPILOG = """\b
Examples:
  marin why pipelines/quickstart.py train --lr 1e-3
  marin why pipelines/quickstart.py train --json"""

_LINE_STYLES = {"-": "red", "+": "green"}


@click.command(cls=TargetCommand, epilog=EPILOG)
@click.argument("target")
@click.argument("step")
@read_from_option
@common_options
@click.pass_context
def command(
    ctx: click.Context,
    target: str,
    step: str,
    read_from: tuple[str, ...],
    store: str,
    as_json: bool,
    traceback: bool,
) -> None:
    """Say why STEP (a name in the plan) of TARGET would run, or who made its result."""
    planned = plan(build_target(ctx, target).steps, store=store, read_from=read_from)
    found = find_step(planned, step)
    opened = Store.open(store, write=False, read_from=read_from)
    changes = Causes(opened).planned(planned, found)
    nearest = found.cause.nearest if found.cause else None
    if as_json:
        drifts = any(drift.name == found.name for drift in planned.drift)
        kind = found.cause.kind if found.cause else "drift" if drifts else None
        record = {"step": found.name, "state": found.state, "kind": kind, "nearest": nearest and nearest.to_json()}
        if found.produced is not None:
            record["store"] = found.produced.store or opened.url
        write_json({**record, "changes": [change.to_json() for change in changes]})
        return
    out = stdout()
    out.print(Text.assemble(f"{found.name}: ", styled_state(found.state)))
    if found.produced is not None:
        out.print(f"  made by {found.produced.user} at {found.produced.at} in run {found.produced.run}")
        if changes:
            out.print(f"  its source changed since, under version {found.step.version}:")
        for each in blessings(store, found.step.step_name()):
            if each.before == found.produced.source:
                out.print(f"  its code changed since, blessed by {each.user} at {each.at}: {each.reason}")
        if found.produced.store not in ("", opened.url):
            out.print(f"  it lies in {found.produced.store}", soft_wrap=True)
    elif found.cause is not None and found.cause.kind == "new":
        out.print("  no earlier result of this step")
    waits = waits_for(planned, found)
    if waits:
        out.print(f"  waits for {', '.join(waits)}", soft_wrap=True)
    draw_changes(out, changes)
    if nearest is not None:
        out.print(f"  compared with run {nearest.run}, {nearest.at}", style="dim")


def find_step(planned: Plan, name: str) -> PlannedStep:
    """Return a step by its name in the plan; ConfigurationError with the near one."""
    names = [step.name for step in planned.steps]
    if name not in names:
        hint = did_you_mean(name, names) or f"its steps are {', '.join(names)}"
        raise ConfigurationError(f"the plan has no step `{name}`", hint=hint)
    return planned.step(name)


def waits_for(planned: Plan, step: PlannedStep) -> list[str]:
    """Return the steps above, nearest first, that have to run before anything is certain of this one."""
    names: dict[str, None] = {}
    waiting = [step]
    while waiting:
        above = waiting.pop(0)
        for name in above.parents:
            parent = planned.step(name)
            if parent.produced is None and name not in names:
                names[name] = None
                waiting.append(parent)
    return list(names)


def draw_changes(out: Console, changes: list[Change]) -> None:
    """Write each difference in a line, changed code with its lines below."""
    for change in changes:
        out.print(f"  {change_text(change)}", soft_wrap=True)
        for line in change.lines:
            out.print(Text(f"    {line}", style=_LINE_STYLES.get(line[:1], "dim")), soft_wrap=True)
