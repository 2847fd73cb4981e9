"""`marin stop`: ask a run to stop, from any machine that sees the store. The request waits in the store."""

import click

from marin.base.errors import ConfigurationError
from marin.base.text import printable
from marin.cli.follow import Watched, next_command
from marin.cli.options import common_options, existing_store, stderr, store_arguments, write_json
from marin.run.producer import this_user
from marin.store import Store, ask_to_stop, ask_to_stop_now
from marin.view.liveness import run_state
from marin.view.moments import moment_text
from marin.view.standing import Stop, read_record, stop_of

EPILOG = """\b
Examples:
  marin stop 20261201-134501-7f3a
  marin stop 20261201-134501-7f3a --now --wait --store s3://lab/marin"""

AT_LEISURE = "begins nothing new; gangs checkpoint, maps finish shards in hand"
AT_ONCE = "begins nothing new, and what is in flight is ended now"


@click.command(epilog=EPILOG)
@click.argument("run")
@click.option("--now", is_flag=True, help="Wait for nothing: what is in flight is ended.")
@click.option("--wait", is_flag=True, help="Return once the run is over.")
@common_options
def command(run: str, now: bool, wait: bool, store: str, as_json: bool, traceback: bool) -> int:
    """Ask RUN to stop: nothing new begins, gangs checkpoint, maps finish the shards in hand.

    `--json` writes `state` of the run, `asked`: whether the run is asked to stop (false: it is over), `first`:
    whether nobody had asked for this before, `now`: whether it is to wait for nothing.
    """
    opened = existing_store(store)
    name = only_run(opened, run)
    record = read_record(opened, name)
    state = run_state(opened, name, record)
    asked = first = False
    if state in ("running", "waiting"):
        before = stop_of(opened, name)
        asked, first = True, (ask_to_stop_now if now else ask_to_stop)(opened.url, name, user=this_user())
        said = _said(name, state, before, now=now)
        stderr().print(printable(f"{said}\nfollow it: marin watch {name}{store_arguments(store)}"), soft_wrap=True)
        if wait:
            watched = Watched(opened, name)
            watched.begun(stderr())
            state = watched.over()
            stderr().print(f"run {name}: {state}", soft_wrap=True)
    else:
        tail = ": its driver is gone" if state == "lost" else ""
        go_on = f"\nto go on: {next_command(opened, name, record or {}, store)}" if state != "done" else ""
        stderr().print(printable(f"run {name} is over already: {state}{tail}{go_on}"), soft_wrap=True)
    if as_json:
        stands = stop_of(opened, name)
        write_json(
            {"run": name, "state": state, "asked": asked, "first": first, "now": stands is not None and stands.now}
        )
    return 0


def only_run(store: Store, text: str) -> str:
    """Return the one run whose id begins so; ConfigurationError when there are none or several."""
    runs = store.runs()
    found = [name for name in runs if name.startswith(text)]
    if text in found:
        return text
    if len(found) != 1:
        what = f"{len(found)} runs begin with {text}" if found else f"the store has no run {text}"
        listed = ", ".join((found or runs)[:3]) or "none"
        hint = f"name one: {listed}" if found else f"the newest are {listed}"
        raise ConfigurationError(what, where=store.url, hint=hint)
    return found[0]


def _said(run: str, state: str, before: Stop | None, *, now: bool) -> str:
    """Return what a run does now that it is asked once more; a request to stop at once is not taken back."""
    at_once = now or (before is not None and before.now)
    what = f"run {run} {AT_ONCE if at_once else AT_LEISURE}"
    if state == "waiting":
        what = f"run {run} has not begun; it will stop as soon as it does"
    if before is None:
        return what
    asked = f"{before.user} asked {moment_text(before.asked)}"
    if now and not before.now:
        return f"{asked} for a stop that keeps what is in hand; from now on it waits for nothing: {what}"
    return f"asked before: {asked}{' for a stop at once' if before.now else ''}: {what}"
