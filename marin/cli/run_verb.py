"""`marin run`: plan and do. Running it again is resuming, and the first line says so."""

import contextlib
import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

import click
from rich.console import Console

from marin.base.errors import MarinError
from marin.base.json import Json
from marin.base.text import printable
from marin.base.units import format_seconds
from marin.cli.errors import as_marin_error
from marin.cli.live import Follower, Lines, Screen, Tables
from marin.cli.logs_verb import attempt_logs
from marin.cli.options import (
    EXIT_CODES,
    common_options,
    grace_option,
    on_busy_option,
    on_drift_option,
    pattern_option,
    read_from_option,
    stderr,
    store_arguments,
    write_json,
)
from marin.cli.plan_verb import draw_drift
from marin.cli.summary import draw_failures, draw_next, draw_notes, draw_stopped, draw_summary, draw_table, took
from marin.cli.target import TargetCommand, build_target, picked
from marin.graph.drift import OnDrift, refuse_drift
from marin.graph.plan import Plan
from marin.graph.step import Step
from marin.run.address import cluster_address
from marin.run.api import BackendName, plan, run_plan
from marin.run.engine import OnBusy
from marin.run.result import RunResult
from marin.run.stopping import GRACE_SECONDS
from marin.run.submit import check_submitted
from marin.run.unbegun import record_unbegun
from marin.store import Store, new_run_id
from marin.view.progress import RunProgress

EPILOG = """\b
Examples:
  marin run pipelines/quickstart.py
  marin run pipelines/quickstart.py --lr 1e-3 --address 10.0.0.1:6379"""


@click.command(cls=TargetCommand, epilog=EPILOG)
@click.argument("target")
@click.option("--address", default=lambda: os.environ.get("RAY_ADDRESS"), help="Ray cluster; none: one of its own.")
@click.option("--backend", type=click.Choice(["ray", "inline"]), default="ray", help="Where steps run.")
@on_drift_option
@on_busy_option
@grace_option
@click.option("--run-id", hidden=True, help="The id that a submitted run was given.")
@pattern_option
@read_from_option
@common_options
@click.pass_context
def command(
    ctx: click.Context,
    target: str,
    address: str | None,
    backend: BackendName,
    on_drift: OnDrift,
    on_busy: OnBusy,
    grace: float,
    run_id: str | None,
    pattern: str | None,
    read_from: tuple[str, ...],
    store: str,
    as_json: bool,
    traceback: bool,
) -> int:
    """Run TARGET; what is done is kept. Options behind TARGET are the pipeline's."""
    if run_id is None:
        return _run(ctx, new_run_id())
    check_submitted(store, run_id)
    with recorded_unless_begun(store, run_id):
        return _run(ctx, run_id)


@contextlib.contextmanager
def recorded_unless_begun(store: str, run: str) -> Iterator[None]:
    """Record what keeps a submitted run from beginning, for whoever looks on; what it came to later it says itself."""
    try:
        yield
    except BaseException as error:
        with contextlib.suppress(MarinError):  # the error itself matters more
            record_unbegun(Store.open(store, write=False), run, as_marin_error(error))
        raise


def _run(ctx: click.Context, run: str) -> int:
    """Plan, run and tell what it came to; return the exit code."""
    began = time.monotonic()
    given = ctx.params
    target, store, read_from, backend = (given[name] for name in ("target", "store", "read_from", "backend"))
    if backend == "ray":
        cluster_address(given["address"])  # a wrong one is said before all else
    built = build_target(ctx, target)
    planned = _planned(built.steps, given["pattern"], store=store, on_drift=given["on_drift"], read_from=read_from)
    progress = RunProgress.of((step.name, step.step.step_name()) for step in planned.steps)
    all_cached = all(step.state == "cached" for step in planned.steps)
    console = stderr()
    if not all_cached:
        console.print(first_line(planned, run))
    screen: Screen = (
        Tables(console) if console.is_terminal and not given["as_json"] and not all_cached else Lines(console)
    )
    interrupted = threading.Event()
    with contextlib.ExitStack() as stack:
        if not all_cached:
            stack.enter_context(Follower(Store.open(store, write=True).url, run, progress, screen))
            stack.enter_context(announced_interrupts(console, interrupted, given["grace"], backend))
            # Standard output is for data: what a step prints in this process must not stand before the JSON.
            stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        result = run_plan(
            planned,
            store=store,
            run=run,
            backend=backend,
            address=given["address"],
            labels=_labels(ctx),
            on_busy=given["on_busy"],
            read_from=read_from,
            interrupted=interrupted,
            grace=given["grace"],
        )
    if all_cached:  # not before: what the store refuses all the same is not nothing
        console.print(first_line(planned, run))
    _draw(result, progress, as_json=given["as_json"], screen=None if all_cached else screen)
    if given["traceback"] and result.state == "failed":
        _write_tracebacks(result)
    _draw_end(ctx, result, f"{built.command}{store_arguments(store, read_from)}")
    stderr().print(took(result, time.monotonic() - began), style="bold")
    return EXIT_CODES[result.state]


def _labels(ctx: click.Context) -> dict[str, Json]:
    """Return how the command was given, from which others make the next one."""
    given = ctx.params
    stores = [part for url in given["read_from"] for part in ("--read-from", url)]
    arguments: list[Json] = [*run_arguments(ctx), *stores]
    return {"arguments": arguments, "target": given["target"], "options": list(ctx.args), "folder": os.getcwd()}


def _draw(result: RunResult, progress: RunProgress, *, as_json: bool, screen: Screen | None) -> None:
    """Write what a run came to; without a screen all was there already."""
    if as_json:
        write_json(result.to_json())
    elif screen is None:
        draw_table(result)
    else:
        draw_summary(result, progress, Store.open(result.store, write=False))
        if isinstance(screen, Tables):  # lines stay where they are; the table has gone, with what it said
            draw_notes(progress)


def _planned(
    steps: Sequence[Step[Any]], pattern: str | None, *, store: str, on_drift: OnDrift, read_from: tuple[str, ...]
) -> Plan:
    """Return the plan of the steps that match, and say or refuse what has drifted."""
    planned = plan(steps, store=store, on_drift=on_drift, read_from=read_from)
    if pattern is not None:
        planned = plan(picked(planned.steps, pattern), store=store, on_drift=on_drift, read_from=read_from)
    refuse_drift(planned.drift, on_drift)
    draw_drift(planned)
    return planned


def _draw_end(ctx: click.Context, result: RunResult, target_and_stores: str) -> None:
    """Write what failed or was stopped, and the next command."""
    again = shlex.join(["marin", "run", *run_arguments(ctx)]) + f" {target_and_stores}"
    if any(step.state == "failed" for step in result.steps) or result.state == "failed":
        draw_failures(result, again, ctx.params["store"])
    elif result.state == "stopped":
        draw_stopped(again)
    elif not ctx.params["as_json"]:
        draw_next(result, target_and_stores, ctx.params["store"])


def first_line(planned: Plan, run: str) -> str:
    """Return what the run is: new, a continuation, or nothing to do."""
    total = len(planned.steps)
    cached = sum(step.state == "cached" for step in planned.steps)
    if cached == total:
        return f"nothing to do: all {total} steps are cached" if total > 1 else "nothing to do: the step is cached"
    if cached:
        return f"resuming: {cached} of {total} steps cached (run {run})"
    return f"new run {run}: {total} step{'s' if total > 1 else ''}"


@contextlib.contextmanager
def announced_interrupts(
    console: Console, interrupted: threading.Event, grace: float, backend: BackendName
) -> Iterator[None]:
    """At the first Ctrl-C, SIGTERM or end of the terminal ask the run to stop, and say so; a second one ends at once.

    A step of the inline backend runs in this very process: a rank takes SIGTERM for itself and keeps its work, anything
    else is interrupted.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    if before[signal.SIGHUP] is signal.SIG_IGN:  # under nohup a closed terminal means nothing
        del before[signal.SIGHUP]

    def interrupt(number: int, frame: FrameType | None) -> None:
        if interrupted.is_set():  # told once; inline, the rank at work did not want this signal
            raise KeyboardInterrupt
        interrupted.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        waits = f"; gangs and maps have {format_seconds(grace)} to keep theirs" if backend == "ray" else ""
        with contextlib.suppress(OSError):  # the terminal may be gone
            console.print(f"stopping: what is finished is kept{waits}. Ctrl-C again stops now")
        if backend == "inline":
            signal.raise_signal(signal.SIGTERM)

    for number in before:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _write_tracebacks(result: RunResult) -> None:
    """Write the logs of each failed step's last attempt, which end with its traceback."""
    store = Store.open(result.store, write=False)
    for step in result.steps:
        if step.state == "failed":
            logs = attempt_logs(store, result.run, step.name)
            for log in logs:
                if log["attempt"] == logs[-1]["attempt"]:
                    click.echo(printable(log["text"].rstrip()), err=True)


def run_arguments(ctx: click.Context, without: Sequence[str] = ()) -> list[str]:
    """Return the verb's own choices that the next command has to repeat."""
    flags = {"-k": "pattern"} | {f"--{name}": name for name in ("backend", "address")}
    flags |= {"--on-drift": "on_drift", "--on-busy": "on_busy", "--grace": "grace"}
    usual = {"backend": "ray", "on_drift": "warn", "on_busy": "wait", "grace": GRACE_SECONDS}
    given = {flag: ctx.params[name] for flag, name in flags.items() if name in ctx.params and name not in without}
    kept = {flag: value for flag, value in given.items() if value not in (None, usual.get(flags[flag]))}
    return [part for flag, value in kept.items() for part in (flag, str(value))]
