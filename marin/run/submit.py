"""Submitting: the working tree and one command, sent to a cluster as a Ray job whose driver does the run.

Invariant: the run's id is chosen, and its submission recorded in the store, before anything is sent; the driver looks
for that record and runs nothing without it. Leaving this process changes nothing for the run. Whoever learns that the
job has ended without a word in the store records that there, so that others need not ask the cluster.
"""

import contextlib
import os
import shlex
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Protocol, cast

from marin import fs
from marin.base.errors import ClusterError, ConfigurationError, Interrupted, MarinError, StoreError
from marin.base.json import Json
from marin.base.lazy import resolve
from marin.run import worktree
from marin.run.address import jobs_address
from marin.run.producer import detailed, this_producer
from marin.run.ray_settings import settle_ray
from marin.run.stopping import GRACE_SECONDS
from marin.run.unbegun import record_lost, record_unbegun
from marin.store import Store, Submission, new_run_id, read_submission, write_submission

RAY_JOBS = "marin.run.backends.ray_jobs:RayJobs"
# Ray kills a job 3 s after it was asked to stop, unless the job says otherwise.
STOP_SECONDS = int(GRACE_SECONDS) + 30
_PROBED = "import marin.cli.app, marin.run.submit, ray"
_SHOWN_LINES = 8


class JobServer(Protocol):
    """What a cluster's job server does."""

    def submit(
        self, job: str, command: str, *, archive: str | None, bytes_sent: int, variables: Mapping[str, str]
    ) -> None:
        """Start a command in a copy of the archive."""

    def state(self, job: str) -> Any:  # Any: JobState, which only Ray's side can import
        """Return how a job stands: `status`, `over`, `message`, `exit_code`."""

    def printed(self, job: str) -> str:
        """Return what a job's command has printed."""


@dataclass(frozen=True)
class Request:
    """What is to run, as the user asked for it."""

    target: str
    options: Sequence[str]
    """The pipeline's."""
    arguments: Sequence[str]
    """Those of `marin run`, stores left out."""
    store: str
    read_from: Sequence[str] = ()


@dataclass(frozen=True)
class Submitted:
    """A run that is on its way."""

    run: str
    ray_job: str
    store: str
    server: JobServer
    tree: worktree.Tree


def open_jobs(address: str) -> JobServer:
    """Return the job server at an address that `jobs_address` returned; ClusterError if none answers."""
    settle_ray(address)
    return cast(JobServer, resolve(RAY_JOBS)(address))


def submit(request: Request, address: str) -> Submitted:
    """Send the working tree and start the run there; returns once the cluster has taken it.

    A run that could not be sent is recorded as failed, and so does not begin either.
    """
    address = jobs_address(address)
    for text in (request.target, *request.options, *request.arguments, request.store, *request.read_from):
        worktree.check_text(text, repr(os.fsencode(text)), "", "give it as UTF-8 text")
    folder = os.getcwd()
    tree = worktree.read_tree(worktree.find_root(folder))
    target = _below(request.target, folder, tree.root)
    server = open_jobs(address)
    worktree.warn_of_left_out(tree)
    store = Store.open(request.store, write=True)
    run = new_run_id()
    sent = Submitted(run, f"marin-{run}", store.url, server, tree)
    command = _command(replace(request, target=target, store=store.url), run, os.path.relpath(folder, tree.root))
    with tempfile.TemporaryDirectory(prefix="marin-tree-") as scratch:
        archive = worktree.write_archive(tree, scratch)
        write_submission(store.url, _submission(request, sent, address, folder))
        _send(sent, command, archive, store)
    return sent


def _send(sent: Submitted, command: str, archive: str | None, store: Store) -> None:
    """Start the job. Where that fails, the record of the failure keeps a job that was taken nevertheless from running.

    A run that has begun by then was taken: only the answer was lost.
    """
    variables = {"RAY_JOB_STOP_WAIT_TIME_S": str(STOP_SECONDS)}
    try:
        sent.server.submit(sent.ray_job, command, archive=archive, bytes_sent=sent.tree.bytes, variables=variables)
    except (MarinError, KeyboardInterrupt) as error:
        what = "the command was interrupted while it sent the run, which will not begin"
        why = error if isinstance(error, MarinError) else Interrupted(what, hint="submit again")
        why.ids |= {"run": sent.run, "ray_job": sent.ray_job}
        has_begun = False
        with contextlib.suppress(StoreError):
            has_begun = not record_unbegun(store, sent.run, why)
        if not has_begun:
            raise why from (None if why is error else error)


def _submission(request: Request, sent: Submitted, address: str, folder: str) -> Submission:
    stores = [part for url in request.read_from for part in ("--read-from", url)]
    return Submission(
        run=sent.run,
        ray_job=sent.ray_job,
        address=address,
        at=datetime.now(UTC).isoformat(timespec="seconds"),
        target=request.target,
        options=tuple(request.options),
        arguments=(*request.arguments, *stores),
        folder=folder,
        producer=_sender(sent.store),
    )


def check_submitted(store_url: str, run: str) -> None:
    """Raise StoreError in the driver of a submitted run whose store is not the one that it was submitted with.

    ConfigurationError if that run has begun already: its id was used twice.
    """
    store = Store.open(store_url, write=False)
    if store.read_run(run) is not None:
        raise ConfigurationError(
            f"run {run} has begun already", where=store.url, hint="submit again: a new run continues what that one left"
        )
    if read_submission(store.url, run) is None:
        local = fs.is_local(store_url)
        raise StoreError(
            f"the store at {store_url} on the cluster is not the one that run {run} was submitted with",
            where=store_url,
            hint="a folder of your machine is not seen there: give --store s3://... or a folder that every node mounts"
            if local
            else "check that the cluster's credentials and endpoint lead to the same place",
        )


def _below(target: str, folder: str, root: str) -> str:
    """Return a target that is found from the same folder in a copy of the tree."""
    place, colon, name = target.partition(":")
    if not (place.endswith(".py") or "/" in place):
        return target
    path, top = os.path.realpath(os.path.join(folder, place)), os.path.realpath(root)
    if not path.startswith(f"{top}/"):
        raise ConfigurationError(
            f"{place} lies outside the working tree", where=root, hint="start in the folder or repository that holds it"
        )
    return os.path.relpath(path, os.path.realpath(folder)) + colon + name


def _command(request: Request, run: str, folder: str) -> str:
    """Return the shell command of the job: the first Python there that has marin, in the user's folder."""
    arguments = ["run", request.target, *request.options, *request.arguments, "--store", request.store]
    arguments += [part for url in request.read_from for part in ("--read-from", url)]
    pythons = " ".join(map(shlex.quote, dict.fromkeys(["python", "python3", sys.executable])))
    missing = "no Python on the head of this cluster has marin and ray: install marin there, or use its image"
    return (
        f'export MARIN_TREE="$PWD"; cd {shlex.quote(folder)} || exit 3; for python in {pythons}; do '
        f'if "$python" -c {shlex.quote(_PROBED)} 2>/dev/null; then '
        f'exec "$python" -m marin {shlex.join(arguments)} --run-id {run}; fi; done; '
        f"echo {shlex.quote(f'error: {missing}')} >&2; exit 3"
    )


def _sender(store_url: str) -> dict[str, Json]:
    here = detailed(this_producer(), store_url)
    return {"user": here.user, "host": here.host, "commit": here.commit, "dirty": here.dirty, "diff": here.diff}


def end_of(sent: Submitted) -> MarinError | None:
    """Return what a job has come to that ended without a last word in the store; None in any other case.

    It is recorded in the store, if that can be written, and is of the kind that the driver's exit code tells.
    """
    state = sent.server.state(sent.ray_job)
    if not state.over:
        return None
    store = Store.open(sent.store, write=False)
    record = store.read_run(sent.run)
    if record is not None and record["state"] != "running":
        return None
    error = _end_error(sent, state, begun=record is not None)
    with contextlib.suppress(StoreError):  # a driver whose store is full ends so, and it is as full from here
        if record is not None:
            record_lost(store, sent.run, record, error)
        elif not record_unbegun(store, sent.run, error):
            return None  # somebody has told before
    return error


def _end_error(sent: Submitted, state: Any, *, begun: bool) -> MarinError:  # Any: JobState
    """Return the error for a job that is over, with the last lines that it has written."""
    try:
        printed = sent.server.printed(sent.ray_job)
    except ClusterError:
        printed = ""
    lines = [line for line in printed.strip().splitlines() if line.strip()]
    said = "\n".join(lines[-_SHOWN_LINES:]) or state.message
    what = "the driver ended without a last word in the store" if begun else "the job ended before the run began"
    kept = ": what was finished is kept" if begun else ""
    usual = MarinError if begun else ClusterError
    kinds: dict[int | None, type[MarinError]] = {1: MarinError, 2: ConfigurationError, 3: ClusterError}
    kind = Interrupted if state.status == "STOPPED" else kinds.get(state.exit_code, usual)
    return kind(
        f"{what} ({state.status.lower()})",
        where="\n".join(filter(None, [f"Ray job {sent.ray_job}", said])),
        hint=f"mend what it says and submit again{kept}; `ray job logs` has all of it",
    )
