"""`marin plan`: what would run, and why. It writes nothing."""

from typing import Any

import click
from rich.table import Table
from rich.text import Text

from marin.base.units import format_seconds, format_size
from marin.cli.options import common_options, pattern_option, stderr, stdout, styled_state, write_json
from marin.cli.target import TargetCommand, build_target, picked
from marin.graph.explain import Change
from marin.graph.plan import Cause, Plan, PlannedStep
from marin.graph.recipe import code_of
from marin.run.api import plan
from marin.store import Store

EPILOG = """\b
Examples:
  marin plan pipelines/quickstart.py --lr 1e-3
  marin plan pipelines/quickstart.py --json --check"""


@click.command(cls=TargetCommand, epilog=EPILOG)
@click.argument("target")
@click.option("--check", is_flag=True, help="Exit with 1 if anything would run.")
@pattern_option
@common_options
@click.pass_context
def command(
    ctx: click.Context, target: str, check: bool, pattern: str | None, store: str, as_json: bool, traceback: bool
) -> int:
    """Show each step of TARGET with its state and the cause; options behind TARGET are the pipeline's."""
    planned = plan(build_target(ctx, target).steps, store=store)
    if pattern is not None:
        planned = plan(picked(planned, pattern), store=store)
    if as_json:
        write_json(plan_json(planned, Store.open(store, write=False)))
    else:
        draw_plan(planned)
    return int(check and any(step.state != "cached" for step in planned.steps))


def plan_json(planned: Plan, store: Store) -> dict[str, Any]:
    """Return the object that `marin plan --json` shows."""
    cached = sum(step.state == "cached" for step in planned.steps)
    return {
        "steps": [_step_json(step, store) for step in planned.steps],
        "cached": cached,
        "to_run": len(planned.steps) - cached,
        "drift": list(planned.drift),
    }


def _step_json(step: PlannedStep, store: Store) -> dict[str, Any]:
    record: dict[str, Any] = {
        "name": step.name,
        "step": step.step.step_name(),
        "state": step.state,
        "recipe": step.recipe.fingerprint,
        "cause": step.cause.to_json() if step.cause else None,
    }
    if step.resolved is not None:
        record["fingerprint"] = step.resolved.fingerprint
    if step.resolved is not None and step.produced is not None:
        folder = store.artifact_folder(record["step"], step.resolved.fingerprint)
        record |= {"artifact": folder, "produced": step.produced.to_json()}
    return record


def draw_plan(planned: Plan) -> None:
    """Write the plan as a table, then a line that sums it up."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("step", "state", "why"):
        table.add_column(heading, overflow="fold")
    for step in planned.steps:
        table.add_row(step.name, styled_state(step.state), _why(step))
    stdout().print(table)
    cached = sum(step.state == "cached" for step in planned.steps)
    stderr().print(f"\n{cached} cached, {len(planned.steps) - cached} to run or unknown", style="bold")
    untracked = [line for step in planned.steps if step.step.version is None for line in code_of(step.step).untracked]
    for line in dict.fromkeys(untracked):
        stderr().print(Text.assemble(("not followed:", "yellow"), f" {line}; an edit behind it is not seen"))


def _why(step: PlannedStep) -> Text:
    if step.produced is not None:
        made = step.produced
        commit = f", commit {made.commit[:8]}" if made.commit else ""
        took = f"{format_size(made.bytes)} in {format_seconds(made.seconds)}"
        return Text(f"{made.user}, {made.at[:16].replace('T', ' ')}{commit}, {took}", style="dim")
    assert step.cause is not None
    return Text(cause_text(step.cause))


def cause_text(cause: Cause) -> str:
    """Return a cause in a line or a few."""
    if cause.kind == "new":
        return "new"
    if cause.kind == "missing":
        return "its output is gone from the store"
    if cause.kind == "parent" and all(change.old is None for change in cause.changes):
        return f"depends on {', '.join(str(change.new) for change in cause.changes)}"
    shown = [change_text(change) for change in cause.changes[:4]]
    more = [f"and {len(cause.changes) - 4} more changes"] if len(cause.changes) > 4 else []
    return "\n".join([*shown, *more])


def change_text(change: Change) -> str:
    """Return one difference: `optimizer.lr: 0.001 -> 0.002`."""
    if change.kind == "code":
        return f"code of {change.path} changed"
    if change.kind == "parent":
        return f"{change.path}: output changed, {change.new}"
    if change.kind == "input" and change.new is None:
        return f"input {change.path} {'removed' if change.old else ''}".rstrip()
    if change.kind == "input":
        return f"input {change.path} {'changed' if change.old else 'added'}"
    return f"{change.path}: {change.old} -> {change.new}"
