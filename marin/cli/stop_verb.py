"""`marin stop`: ask a run to stop, from any machine that sees the store. The request waits in the store."""

import click

from marin.base.errors import ConfigurationError
from marin.cli.follow import Watched, next_command
from marin.cli.options import common_options, existing_store, stderr, store_arguments, write_json
from marin.run.producer import this_user
from marin.store import Store, ask_to_stop, ask_to_stop_now
from marin.view.liveness import run_state

EPILOG = """\b
Examples:
  marin stop 20261201-134501-7f3a
  marin stop 20261201-134501-7f3a --now --wait --store s3://lab/marin"""


@click.command(epilog=EPILOG)
@click.argument("run")
@click.option("--now", is_flag=True, help="Wait for nothing: what is in flight is ended.")
@click.option("--wait", is_flag=True, help="Return once the run is over.")
@common_options
def command(run: str, now: bool, wait: bool, store: str, as_json: bool, traceback: bool) -> int:
    """Ask RUN to stop: nothing new begins, gangs checkpoint, maps finish the shards in hand."""
    opened = existing_store(store)
    name = only_run(opened, run)
    record = opened.read_run(name)
    state = run_state(opened, name, record)
    asked = first = False
    if state in ("running", "waiting"):
        asked, first = True, (ask_to_stop_now if now else ask_to_stop)(opened.url, name, user=this_user())
        stderr().print(_said(name, state, now=now, first=first, store=store), soft_wrap=True)
        if wait:
            watched = Watched(opened, name)
            watched.begun(stderr())
            state = watched.over()
            stderr().print(f"run {name}: {state}", soft_wrap=True)
    else:
        tail = ": its driver is gone" if state == "lost" else ""
        go_on = f"\nto go on: {next_command(opened, name, record or {}, store)}" if state != "done" else ""
        stderr().print(f"run {name} is over already: {state}{tail}{go_on}", soft_wrap=True)
    if as_json:
        write_json({"run": name, "state": state, "asked": asked, "first": first})
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


def _said(run: str, state: str, *, now: bool, first: bool, store: str) -> str:
    again = "" if first else "asked before: "
    if state == "waiting":
        return f"{again}run {run} has not begun; it will stop as soon as it does"
    what = "ends what is in flight now" if now else "begins nothing new; gangs checkpoint, maps finish shards in hand"
    return f"{again}run {run} {what}\nfollow it: marin watch {run}{store_arguments(store)}"
