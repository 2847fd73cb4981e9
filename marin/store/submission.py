"""Submissions: what was sent to a cluster as a Ray job, written before it is sent.

Invariant: the record is there before the driver in the cluster begins, so that a driver which does not find it knows
that its store is another one than the user's (a folder of a laptop, say), and runs nothing.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from marin import fs
from marin.base.json import Json
from marin.store import layout, records

KIND = "submission"


@dataclass(frozen=True, slots=True)
class Submission:
    """One run as it was submitted: where to, by whom, from which working tree."""

    run: str
    ray_job: str
    address: str
    at: str
    target: str
    options: tuple[str, ...] = ()
    """The pipeline's options, as typed."""
    arguments: tuple[str, ...] = ()
    """The verb's own options, for the next command."""
    folder: str = ""
    """Where the command was given."""
    producer: Mapping[str, Json] = field(default_factory=dict)
    """`user`, `host`, git `commit`, `dirty` and `diff` of the working tree."""


def write_submission(store_url: str, submission: Submission) -> None:
    """Record a submission; it is never changed."""
    record: dict[str, Json] = {**asdict(submission), "producer": dict(submission.producer)}
    record |= {"options": list(submission.options), "arguments": list(submission.arguments)}
    fs.create(_url(store_url, submission.run), records.encode(KIND, record))


def read_submission(store_url: str, run: str) -> Submission | None:
    """Return how a run was submitted; None for one that its driver began by itself."""
    found: dict[str, Any] | None = records.load(_url(store_url, run), KIND)  # Any: JSON
    if found is None:
        return None
    return Submission(
        run=found["run"],
        ray_job=found["ray_job"],
        address=found["address"],
        at=found["at"],
        target=found["target"],
        options=tuple(map(str, found.get("options") or ())),
        arguments=tuple(map(str, found.get("arguments") or ())),
        folder=str(found.get("folder") or ""),
        producer=found.get("producer") or {},
    )


def _url(store_url: str, run: str) -> str:
    return fs.join(layout.run_folder(store_url, run), "submission.json")
