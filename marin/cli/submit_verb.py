"""`marin submit`: a run as a Ray job. The driver lives in the cluster; this terminal only looks on."""

import os
from collections.abc import Callable

import click

from marin.base.errors import ClusterError, ConfigurationError, MarinError
from marin.base.units import format_size
from marin.cli.follow import follow, say_left
from marin.cli.options import (
    EXIT_CODES,
    common_options,
    grace_option,
    on_busy_option,
    on_drift_option,
    pattern_option,
    read_from_option,
    stderr,
    write_json,
)
from marin.cli.run_verb import run_arguments
from marin.cli.target import TargetCommand, build_target
from marin.graph.drift import OnDrift
from marin.run.engine import OnBusy
from marin.run.submit import Request, Submitted, failed_before, submit
from marin.store import Store

ASK_EVERY = 2
"""Looks at the store between two questions to the cluster."""

EPILOG = """\b
Examples:
  marin submit sweep.py --address http://10.0.0.1:8265 --store s3://lab/marin
  marin submit sweep.py --lr 1e-3 --detach --json"""


@click.command(cls=TargetCommand, epilog=EPILOG)
@click.argument("target")
@click.option(
    "--address",
    default=lambda: os.environ.get("RAY_API_SERVER_ADDRESS"),
    help="The cluster: http://HOST:8265, its dashboard.",
    metavar="URL",
)
@click.option("--detach", "--no-follow", is_flag=True, help="Return once the cluster has the run.")
@on_drift_option
@on_busy_option
@grace_option
@pattern_option
@read_from_option
@common_options
@click.pass_context
def command(
    ctx: click.Context,
    target: str,
    address: str | None,
    detach: bool,
    on_drift: OnDrift,
    on_busy: OnBusy,
    grace: float,
    pattern: str | None,
    read_from: tuple[str, ...],
    store: str,
    as_json: bool,
    traceback: bool,
) -> int:
    """Run TARGET as a Ray job; leaving the terminal does not stop it."""
    if not address:
        hint = "give --address http://HOST:8265, or set RAY_API_SERVER_ADDRESS"
        raise ConfigurationError("submit needs the address of a cluster's dashboard", hint=hint)
    build_target(ctx, target)  # what is wrong with it is said here, before anything is sent
    own = [flag for flag in ("address", "backend") if flag in ctx.params]
    arguments = run_arguments(ctx, without=own)
    request = Request(target, tuple(ctx.args), arguments, store, read_from)
    sent = submit(request, address)
    err = stderr()
    files = f"{len(sent.tree.files)} files, {format_size(sent.tree.bytes)}"
    err.print(f"submitted run {sent.run} as Ray job {sent.ray_job} ({files})", soft_wrap=True)
    if as_json:
        write_json({"run": sent.run, "ray_job": sent.ray_job})
    if detach:
        say_left(sent.run, store)
        return EXIT_CODES["done"]
    opened = Store.open(store, write=False)
    try:
        return follow(opened, sent.run, as_json=as_json, option=store, ended=_asking(sent))
    except KeyboardInterrupt:
        say_left(sent.run, store)
        return EXIT_CODES["stopped"]


def _asking(sent: Submitted) -> Callable[[], MarinError | None]:
    """Return what asks the cluster, now and then, whether the job has ended."""
    looks = 0

    def ended() -> MarinError | None:
        nonlocal looks
        looks += 1
        if looks % ASK_EVERY:
            return None
        try:
            state = sent.server.state(sent.ray_job)
        except ClusterError:  # the head may be out of reach while the run goes on: the store tells
            return None
        return failed_before(sent, state) if state.over else None

    return ended
