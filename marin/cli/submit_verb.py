"""`marin submit`: a run as a Ray job. The driver lives in the cluster; this terminal only looks on."""

import os
from collections.abc import Callable, Sequence
from typing import Any

import click

from marin.base.errors import ClusterError, ConfigurationError, MarinError, StoreError
from marin.base.units import format_size
from marin.cli.follow import exit_code, followed, say_left
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
from marin.cli.status_verb import status_json
from marin.cli.target import TargetCommand, build_target, picked
from marin.graph.drift import OnDrift
from marin.graph.step import Step
from marin.graph.topology import order
from marin.run.address import jobs_address
from marin.run.engine import OnBusy
from marin.run.publish import check_places
from marin.run.submit import Request, Submitted, end_of, submit
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
    """Run TARGET as a Ray job; Ctrl-C (exit code 130) only leaves it."""
    if not address:
        hint = "give --address http://HOST:8265, or set RAY_API_SERVER_ADDRESS"
        raise ConfigurationError("submit needs the address of a cluster's dashboard", hint=hint)
    address = jobs_address(address)
    built = build_target(ctx, target)  # what is wrong with it is said here, before anything is sent
    check_places(_wanted(built.steps, pattern))
    own = [flag for flag in ("address", "backend") if flag in ctx.params]
    arguments = run_arguments(ctx, without=own)
    request = Request(target, tuple(ctx.args), arguments, store, read_from)
    sent = submit(request, address)
    err = stderr()
    files = f"{len(sent.tree.files)} files, {format_size(sent.tree.bytes)}"
    err.print(f"submitted run {sent.run} as Ray job {sent.ray_job} ({files})", soft_wrap=True)
    ids = {"run": sent.run, "ray_job": sent.ray_job}
    if not detach:
        try:
            return _followed(sent, store, as_json=as_json)
        except KeyboardInterrupt:
            pass
        except MarinError as error:
            error.ids |= ids
            raise
    say_left(sent.run, store)
    if as_json:
        write_json(ids)
    return EXIT_CODES["done" if detach else "stopped"]


def _wanted(steps: Sequence[Step[Any]], pattern: str | None) -> list[Step[Any]]:
    """Return all steps that the run will have, whose inputs need not be here."""
    named = order(steps, lambda _: ())
    if pattern is not None:
        named = order(picked(named, pattern), lambda _: ())
    return [each.step for each in named]


def _followed(sent: Submitted, store: str, *, as_json: bool) -> int:
    """Look on until the run is over; return the exit code that it had."""
    opened = Store.open(store, write=False)
    stands = followed(opened, sent.run, as_json=as_json, option=store, ended=_asking(sent))
    if as_json:
        write_json(status_json(opened, stands, store))
    return exit_code(stands)


def _asking(sent: Submitted) -> Callable[[], MarinError | None]:
    """Return what asks the cluster, now and then, whether the job has ended."""
    looks = 0

    def ended() -> MarinError | None:
        nonlocal looks
        looks += 1
        if looks % ASK_EVERY:
            return None
        try:
            return end_of(sent)
        except (ClusterError, StoreError):  # out of reach while the run goes on, perhaps: the next look tells
            return None

    return ended
