"""`marin plan`: what would run, and why. It writes nothing."""

from typing import Any

import click
from rich.table import Table
from rich.text import Text

from marin.base.units import format_seconds, format_size
from marin.cli.options import (
    common_options,
    on_drift_option,
    pattern_option,
    read_from_option,
    stderr,
    stdout,
    styled_state,
    write_json,
)
from marin.cli.target import TargetCommand, build_target, picked
from marin.graph.drift import OnDrift
from marin.graph.explain import MORE_FILES, Change
from marin.graph.plan import Cause, Plan, PlannedStep
from marin.graph.recipe import code_of
from marin.run.api import plan
from marin.store import Store, layout

_SHOWN_CHANGES = 4
_NAMED_DEFINITIONS = 3

EPILOG = """\b
Examples:
  marin plan pipelines/quickstart.py --lr 1e-3
  marin plan pipelines/quickstart.py --json --check"""


@click.command(cls=TargetCommand, epilog=EPILOG)
@click.argument("target")
@click.option("--check", is_flag=True, help="Exit with 1 if anything would run.")
@on_drift_option
@pattern_option
@read_from_option
@common_options
@click.pass_context
def command(
    ctx: click.Context,
    target: str,
    check: bool,
    on_drift: OnDrift,
    pattern: str | None,
    read_from: tuple[str, ...],
    store: str,
    as_json: bool,
    traceback: bool,
) -> int:
    """Show each step of TARGET with its state and the cause; options behind TARGET are the pipeline's."""
    planned = plan(build_target(ctx, target).steps, store=store, on_drift=on_drift, read_from=read_from)
    if pattern is not None:
        planned = plan(picked(planned.steps, pattern), store=store, on_drift=on_drift, read_from=read_from)
    opened = Store.open(store, write=False)
    if as_json:
        write_json(plan_json(planned, opened))
    else:
        draw_plan(planned, opened)
    if check and on_drift == "fail" and planned.drift:
        stderr().print("--check fails: code drift is not passed over here (--on-drift, or CI is set)")
    would_run = any(step.state != "cached" for step in planned.steps)
    return int(check and (would_run or (on_drift == "fail" and bool(planned.drift))))


def plan_json(planned: Plan, store: Store) -> dict[str, Any]:
    """Return the object that `marin plan --json` shows."""
    cached = sum(step.state == "cached" for step in planned.steps)
    return {
        "steps": [_step_json(step, store) for step in planned.steps],
        "cached": cached,
        "to_run": len(planned.steps) - cached,
        "drift": [each.to_json() for each in planned.drift],
    }


def _step_json(step: PlannedStep, store: Store) -> dict[str, Any]:
    record: dict[str, Any] = {
        "name": step.name,
        "step": step.step.step_name(),
        "state": step.state,
        "recipe": step.recipe,
        "cause": step.cause.to_json() if step.cause else None,
    }
    if step.fingerprint is not None:
        record["fingerprint"] = step.fingerprint
    if step.fingerprint is not None and step.produced is not None:
        folder = layout.artifact_folder(step.produced.store or store.url, record["step"], step.fingerprint)
        record |= {"artifact": folder, "produced": step.produced.to_json()}
    return record


def draw_plan(planned: Plan, store: Store) -> None:
    """Write the plan as a table, then a line that sums it up."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("step", "state", "why"):
        table.add_column(heading, overflow="fold")
    for step in planned.steps:
        table.add_row(step.name, styled_state(step.state), _why(step, store))
    stdout().print(table)
    cached = sum(step.state == "cached" for step in planned.steps)
    stderr().print(f"\n{cached} cached, {len(planned.steps) - cached} to run or unknown", style="bold")
    draw_drift(planned)
    untracked = [line for step in planned.steps if step.step.version is None for line in code_of(step.step).untracked]
    for line in dict.fromkeys(untracked):
        stderr().print(Text.assemble(("not followed:", "yellow"), f" {line}; an edit behind it is not seen"))


def draw_drift(planned: Plan) -> None:
    """Name each result whose step's source has changed under its declared version."""
    for each in planned.drift:
        names = ", ".join(change.path for change in each.changes[:_NAMED_DEFINITIONS])
        more = f" and {len(each.changes) - _NAMED_DEFINITIONS} more" if len(each.changes) > _NAMED_DEFINITIONS else ""
        what = f": {names}{more}" if names else ""
        text = f" {each.name}: its source changed under version {each.version}{what}"
        stderr().print(Text.assemble(("code drift:", "yellow"), text), soft_wrap=True)
    if planned.drift and planned.on_drift == "warn":
        stderr().print("hint: --on-drift rerun makes them anew; `marin bless` accepts the change", style="dim")


def _why(step: PlannedStep, store: Store) -> Text:
    if step.produced is not None:
        made = step.produced
        commit = f", commit {made.commit[:8]}" if made.commit else ""
        took = f"{format_size(made.bytes)} in {format_seconds(made.seconds)}"
        place = f", in {made.store}" if made.store not in ("", store.url) else ""
        return Text(f"{made.user}, {made.at[:16].replace('T', ' ')}{commit}, {took}{place}", style="dim")
    assert step.cause is not None
    return Text(cause_text(step.cause))


def cause_text(cause: Cause) -> str:
    """Return a cause in a line or a few."""
    if cause.kind == "new":
        return "new"
    if cause.kind == "missing":
        return str(cause.changes[0].new) if cause.changes else "its output is gone from the store"
    waits = [change for change in cause.changes if change.kind == "parent" and change.old is None]
    own = [change for change in cause.changes if change not in waits]
    above = [f"depends on {', '.join(str(change.new) for change in waits)}"] if waits else []
    drift = ["its source changed under its declared version"] if cause.kind == "drift" else []
    shown = [change_text(change) for change in own[:_SHOWN_CHANGES]]
    left = sum(int(str(each.new)) if each.path == MORE_FILES else 1 for each in own[_SHOWN_CHANGES:])
    more = [f"and {left} more change{'s' * (left > 1)}"] if left else []
    return "\n".join([*above, *drift, *shown, *more])


def change_text(change: Change) -> str:
    """Return one difference: `optimizer.lr: 0.001 -> 0.002`."""
    if change.kind == "code":
        above, _, name = change.path.rpartition(" > ")
        verb = "changed" if change.old and change.new else "is new" if change.new else "is gone"
        return f"{above + ': ' if above else ''}code of {name} {verb}"
    if change.kind == "missing":
        return f"{change.path}: {change.new or 'its output is gone from the store'}"
    if change.kind == "parent":
        return f"{change.path}: output changed, {change.new}"
    if change.path == MORE_FILES:
        return f"and {change.new} more input files"
    if change.kind == "input" and change.new is None:
        return f"input {change.path} {'removed' if change.old else ''}".rstrip()
    if change.kind == "input":
        return f"input {change.path} {'changed' if change.old else 'added'}"
    return f"{change.path}: {change.old} -> {change.new}"
