"""`marin bless`: accept changed code, so that earlier results stay valid; `--undo` takes it back."""

from typing import NamedTuple

import click

from marin.base.errors import ConfigurationError
from marin.cli.options import common_options, existing_store, stdout, write_json
from marin.cli.target import TargetCommand, build_target
from marin.cli.why_verb import draw_changes, find_step
from marin.graph.explain import Change
from marin.graph.plan import Plan, PlannedStep
from marin.graph.recipe import source_of
from marin.run.api import plan
from marin.run.producer import this_producer
from marin.store import Store
from marin.store.blessed import Blessing, bless, blessings, unbless
from marin.view.causes import Causes

EPILOG = """\b
Examples:
  marin bless pipelines/quickstart.py train --reason "renamed a variable"
  marin bless train --undo"""


class _Changed(NamedTuple):
    """The code that made a result, and the code that stands now."""

    before: str
    now: str
    changes: list[Change]


@click.command(cls=TargetCommand, epilog=EPILOG)
@click.argument("what", nargs=-1, required=True, metavar="[TARGET] STEP")
@click.option("--reason", help="Why the changed code means the same; it is recorded.", metavar="TEXT")
@click.option("--undo", is_flag=True, help="Take the blessing of the present code back.")
@common_options
@click.pass_context
def command(
    ctx: click.Context,
    what: tuple[str, ...],
    reason: str | None,
    undo: bool,
    store: str,
    as_json: bool,
    traceback: bool,
) -> None:
    """Accept the changed code of STEP: what the earlier code made counts as if the present code had made it.

    Without TARGET, the pipeline of the newest run that had such a step.
    """
    opened = existing_store(store)
    if bool(reason) == undo:
        raise ConfigurationError("a blessing needs a reason", hint="add --reason TEXT, or --undo to take one back")
    target, name = _target(ctx, opened, what)
    planned = plan(build_target(ctx, target).steps, store=store)
    step = find_step(planned, name)
    if undo:
        found = _undone(opened, step)
        changes: list[Change] = []
    else:
        changed = _changed(opened, planned, step)
        found, changes = [_blessed(opened, step, changed, str(reason))], changed.changes
    again = find_step(plan([each.step for each in planned.steps], store=store), name)
    if as_json:
        written = [each._asdict() for each in found]
        write_json({"step": name, "state": again.state, "undone": undo, "blessings": written})
        return
    out = stdout()
    for each in found:
        verb = "taken back" if undo else "blessed"
        out.print(f"{verb}: code {each.now[:8]} of {each.step} stands for {each.before[:8]} ({each.reason})")
    draw_changes(out, changes)
    out.print(f"{name} is now: {again.state}")


def _target(ctx: click.Context, store: Store, what: tuple[str, ...]) -> tuple[str, str]:
    """Return target and step; the target of the newest run that had the step when none is given."""
    if len(what) == 2:
        return what[0], what[1]
    if len(what) > 2:
        raise ConfigurationError(f"bless takes a target and a step, and got {' '.join(what)}", hint="bless one step")
    for run in store.runs():
        record = store.read_run(run) or {}
        if record.get("target") and any(what[0] == step.get("name") for step in record.get("steps", ())):
            ctx.args = list(record.get("options") or ())
            return str(record["target"]), what[0]
    raise ConfigurationError(
        f"no run of this store had a step called {what[0]!r}",
        where=store.url,
        hint=f"name the pipeline too: marin bless TARGET {what[0]}",
    )


def _changed(store: Store, planned: Plan, step: PlannedStep) -> _Changed:
    """Return how the code of a step changed since its nearest result; ConfigurationError when it did not."""
    drifted = [drift for drift in planned.drift if drift.name == step.name]
    if drifted:
        return _Changed(drifted[0].recorded, drifted[0].now, Causes(store).drifted(drifted[0], step))
    if step.state == "cached":
        raise ConfigurationError(
            f"{step.name} is cached with the code that stands now: there is nothing to bless",
            where=f"step {step.name}",
            hint="edit first, bless then; `marin plan` shows what an edit costs",
        )
    nearest = step.cause.nearest if step.cause else None
    source = source_of(step.step)
    code = [change for change in (step.cause.changes if step.cause else ()) if change.kind == "code"]
    if nearest is None or nearest.source is None or source is None or not code:
        raise ConfigurationError(
            f"the code of {step.name} is not what changed",
            where=f"step {step.name}: {step.state}",
            hint="`marin why` says what did; only changed code can be blessed",
        )
    shown = [change for change in Causes(store).planned(planned, step) if change.kind == "code"]
    return _Changed(nearest.source, source.digest, shown)


def _blessed(store: Store, step: PlannedStep, changed: _Changed, reason: str) -> Blessing:
    return bless(
        store.url,
        step=step.step.step_name(),
        before=changed.before,
        now=changed.now,
        reason=reason,
        user=this_producer().user,
    )


def _undone(store: Store, step: PlannedStep) -> list[Blessing]:
    source = source_of(step.step)
    found = [each for each in blessings(store.url, step.step.step_name()) if source and each.now == source.digest]
    if not found:
        raise ConfigurationError(
            f"the present code of {step.name} is not blessed",
            where=store.url,
            hint="`marin show` of a result lists what was blessed for it",
        )
    for each in found:
        unbless(store.url, each)
    return found
