"""Submitting: the working tree and one command, sent to a cluster as a Ray job whose driver does the run.

Invariant: the run's id is chosen, and its submission recorded in the store, before anything is sent; the driver looks
for that record and runs nothing without it. Leaving this process changes nothing for the run.
"""

import os
import shlex
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Protocol, cast
from urllib.parse import urlsplit

from marin import fs
from marin.base.errors import ClusterError, ConfigurationError, MarinError, StoreError
from marin.base.json import Json
from marin.base.lazy import resolve
from marin.run import worktree
from marin.run.producer import detailed, this_producer
from marin.run.ray_settings import settle_ray
from marin.run.stopping import GRACE_SECONDS
from marin.store import Store, Submission, new_run_id, read_submission, write_submission

RAY_JOBS = "marin.run.backends.ray_jobs:RayJobs"
# Ray kills a job 3 s after it was asked to stop, unless the job says otherwise.
STOP_SECONDS = int(GRACE_SECONDS) + 30
_PROBED = "import marin.cli.app, marin.run.submit, ray"


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
    server: JobServer
    tree: worktree.Tree


def open_jobs(address: str) -> JobServer:
    """Return the job server at `http://HOST:8265`; ConfigurationError for what is no such address."""
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigurationError(
            f"{address!r} is no address of a Ray job server",
            where=address,
            hint="give that of the cluster's dashboard, `http://HOST:8265`; `marin run` takes HOST:6379 and ray://",
        )
    settle_ray(address)
    return cast(JobServer, resolve(RAY_JOBS)(address))


def submit(request: Request, address: str) -> Submitted:
    """Send the working tree and start the run there; returns once the cluster has taken it."""
    _check_text(request)
    folder = os.getcwd()
    tree = worktree.read_tree(worktree.find_root(folder))
    target = _below(request.target, folder, tree.root)
    server = open_jobs(address)
    store = Store.open(request.store, write=True)
    run = new_run_id()
    submission = Submission(
        run=run,
        ray_job=f"marin-{run}",
        address=address,
        at=datetime.now(UTC).isoformat(timespec="seconds"),
        target=request.target,
        options=tuple(request.options),
        arguments=tuple(request.arguments),
        producer=_sender(store.url),
    )
    write_submission(store.url, submission)
    command = _command(replace(request, target=target, store=store.url), run, os.path.relpath(folder, tree.root))
    with tempfile.TemporaryDirectory(prefix="marin-tree-") as scratch:
        server.submit(
            submission.ray_job,
            command,
            archive=worktree.write_archive(tree, scratch),
            bytes_sent=tree.bytes,
            variables={"RAY_JOB_STOP_WAIT_TIME_S": str(STOP_SECONDS)},
        )
    return Submitted(run, submission.ray_job, server, tree)


def _check_text(request: Request) -> None:
    """Raise ConfigurationError for an option that is no UTF-8: Ray would lose the job over it, without a word."""
    for text in (request.target, *request.options, *request.arguments, request.store, *request.read_from):
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ConfigurationError(
                f"{os.fsencode(text)!r} is no UTF-8, and cannot be sent", hint="give it as UTF-8 text"
            ) from error


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
        f'exec "$python" -m marin.cli {shlex.join(arguments)} --run-id {run}; fi; done; '
        f"echo {shlex.quote(f'error: {missing}')} >&2; exit 3"
    )


def _sender(store_url: str) -> dict[str, Json]:
    here = detailed(this_producer(), store_url)
    return {"user": here.user, "host": here.host, "commit": here.commit, "dirty": here.dirty, "diff": here.diff}


def failed_before(submitted: Submitted, state: Any) -> MarinError:  # Any: JobState
    """Return the error for a job that ended without a word in the store, of the kind that its driver has said."""
    lines = [line for line in submitted.server.printed(submitted.ray_job).strip().splitlines() if line.strip()]
    said = "\n".join(lines[-8:]) or state.message
    kind = {1: MarinError, 2: ConfigurationError}.get(state.exit_code, ClusterError)
    return kind(
        f"the job ended before the run began ({state.status.lower()})",
        where="\n".join(filter(None, [f"Ray job {submitted.ray_job}", said])),
        hint="mend what it says and submit again; `ray job logs` has all of it",
    )
