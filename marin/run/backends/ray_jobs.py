"""Ray's job server, through its HTTP interface: send a command with an archive, ask how it is, read what it printed.

Invariant: no call waits longer than its limit, and what the server refuses is a ClusterError that says what to do. The
command gets its packages from the cluster: marin asks Ray to install nothing.
"""

import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import requests
from ray import exceptions
from ray.job_submission import JobStatus, JobSubmissionClient

from marin.base.errors import ClusterError
from marin.run.backends.ray_connect import refused

T = TypeVar("T")

ANSWER_SECONDS = 15.0
SENT_BYTES_PER_SECOND = 500_000
_OVERRIDING = ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS")
"""Variables that Ray's client prefers to the address that it is given."""
_OVER = {JobStatus.SUCCEEDED, JobStatus.FAILED, JobStatus.STOPPED}


@dataclass(frozen=True, slots=True)
class JobState:
    """How a Ray job stands."""

    status: str
    """Ray's word: PENDING, RUNNING, SUCCEEDED, FAILED or STOPPED."""
    over: bool
    message: str = ""
    exit_code: int | None = None
    """Of the command, once it has ended by itself."""


class RayJobs:
    """The job server at `http://HOST:8265`. Raises ClusterError, within 15 s, if none answers or lets us in."""

    def __init__(self, address: str) -> None:
        self._address = address
        logging.getLogger("ray.dashboard.modules.dashboard_sdk").setLevel(logging.WARNING)  # it tells of each upload
        with _without(*_OVERRIDING):
            self._client: JobSubmissionClient = self._ask(lambda: JobSubmissionClient(address), ANSWER_SECONDS)

    def submit(
        self, job: str, command: str, *, archive: str | None, bytes_sent: int, variables: Mapping[str, str]
    ) -> None:
        """Send the archive and start the command in its root; its workers find the archive's content too."""
        environment: dict[str, Any] = {"env_vars": dict(variables)}  # Any: Ray's runtime environment
        if archive is not None:
            environment["working_dir"] = archive
        limit = ANSWER_SECONDS + bytes_sent / SENT_BYTES_PER_SECOND
        self._ask(
            lambda: self._client.submit_job(entrypoint=command, submission_id=job, runtime_env=environment), limit
        )

    def state(self, job: str) -> JobState:
        """Return how a job stands."""
        found = self._ask(lambda: self._client.get_job_info(job), ANSWER_SECONDS)
        status = JobStatus(found.status)
        return JobState(status.value, status in _OVER, found.message or "", found.driver_exit_code)

    def printed(self, job: str) -> str:
        """Return what the command has printed."""
        text: str = self._ask(lambda: self._client.get_job_logs(job), ANSWER_SECONDS)
        return text

    def _ask(self, call: Callable[[], T], seconds: float) -> T:
        """Return the answer of a call that Ray gives no limit; a thread can be left behind."""
        answers: list[T] = []
        failures: list[BaseException] = []

        def ask() -> None:
            try:
                answers.append(call())
            except (RuntimeError, OSError, ValueError, exceptions.RayError, requests.RequestException) as error:
                failures.append(error)

        thread = threading.Thread(target=ask, name="ray-jobs", daemon=True)
        thread.start()
        thread.join(seconds)
        if answers:
            return answers[0]
        if failures and isinstance(failures[0], exceptions.AuthenticationError):
            raise refused(self._address) from failures[0]
        why = f": {str(failures[0]).strip().splitlines()[0]}" if failures else f" within {seconds:.0f} s"
        raise ClusterError(
            f"no Ray job server answers at {self._address}{why}",
            where=self._address,
            hint="give the dashboard's address, `http://HOST:8265`; here and there Ray needs its extra, "
            "`pip install 'marin[cluster]'` or `'ray[default]'`",
        ) from (failures[0] if failures else None)


@contextmanager
def _without(*names: str) -> Iterator[None]:
    """Leave variables out of this process's environment for a while."""
    kept = {name: os.environ.pop(name) for name in names if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(kept)
