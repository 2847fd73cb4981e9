"""`marin why`: the differences that make a step run, down to the first cause."""

import click
from rich.text import Text

from marin.base.errors import ConfigurationError, did_you_mean
from marin.cli.options import common_options, stdout, styled_state, write_json
from marin.cli.plan_verb import change_text
from marin.cli.target import TargetCommand, build_target
from marin.graph.plan import Plan, PlannedStep
from marin.run.api import plan

EPILOG = """\b
Examples:
  marin why pipelines/quickstart.py train --lr 1e-3
  marin why pipelines/quickstart.py train --json"""


@click.command(cls=TargetCommand, epilog=EPILOG)
@click.argument("target")
@click.argument("step")
@common_options
@click.pass_context
def command(ctx: click.Context, target: str, step: str, store: str, as_json: bool, traceback: bool) -> None:
    """Say why STEP (a name in the plan) of TARGET would run, or who made its result."""
    planned = plan(build_target(ctx, target).steps, store=store)
    found = find_step(planned, step)
    if as_json:
        cause = found.cause.to_json() if found.cause else {"changes": [], "kind": None}
        record = {"step": found.name, "state": found.state, "kind": cause["kind"], "changes": cause["changes"]}
        write_json({**record, "nearest": cause.get("nearest")})
        return
    _draw(planned, found, depth=0)


def find_step(planned: Plan, name: str) -> PlannedStep:
    """Return a step by its name in the plan; ConfigurationError with the near one."""
    names = [step.name for step in planned.steps]
    if name not in names:
        hint = did_you_mean(name, names) or f"its steps are {', '.join(names)}"
        raise ConfigurationError(f"the plan has no step `{name}`", hint=hint)
    return planned.step(name)


def _draw(planned: Plan, step: PlannedStep, depth: int) -> None:
    """Write a step's cause, then that of each parent that has to run first."""
    out, indent = stdout(), "  " * depth
    out.print(Text.assemble(f"{indent}{step.name}: ", styled_state(step.state)))
    if step.produced is not None:
        out.print(f"{indent}  made by {step.produced.user} at {step.produced.at} in run {step.produced.run}")
    if step.cause is None:
        return
    if step.cause.kind in ("new", "missing"):
        text = "no earlier result of this step" if step.cause.kind == "new" else "its output is gone from the store"
        out.print(f"{indent}  {text}")
    waits = [change for change in step.cause.changes if change.kind == "parent" and change.old is None]
    for change in step.cause.changes:
        if change not in waits:
            out.print(f"{indent}  {change_text(change)}", soft_wrap=True)
    if step.cause.nearest is not None:
        nearest = step.cause.nearest
        out.print(f"{indent}  compared with run {nearest.run}, {nearest.at}", style="dim")
    for change in waits:
        out.print(f"{indent}  {change.path} must run first:")
        _draw(planned, planned.step(str(change.new)), depth + 2)
