"""What the end of an attempt means when it committed nothing: the failure to show, whoever left word of it."""

import json

from marin import fs
from marin.run.backend import Ended
from marin.run.failure import Failure, lost
from marin.run.retry import Cause
from marin.run.work import Work


def failure_of(work: Work, ended: Ended, folder: str) -> Failure:
    """Return why an attempt left no result: its report's word, what it wrote into its folder, or how it was lost."""
    if ended.report is not None:
        return ended.report.failure or _vanished(work)
    return _left_behind(folder) or _without_report(work, ended)


def _left_behind(folder: str) -> Failure | None:
    """Return the failure that an attempt wrote down before it ended its own process."""
    try:
        record = json.loads(fs.read(fs.join(folder, "result.json")))["failure"]
        return Failure(**{**record, "cause": Cause(record["cause"])}) if record else None
    except (fs.NotFound, ValueError, KeyError, TypeError, RecursionError):
        return None


def _without_report(work: Work, ended: Ended) -> Failure:
    """Return the failure of an attempt whose worker left no report."""
    assert ended.cause is not None
    tries = "" if ended.cause is Cause.STOPPED else f" (attempt {work.attempts} of {work.budget.retries + 1})"
    return lost(
        ended.cause,
        f"{ended.message}{tries}",
        where=f"step {work.name}",
        hint="run the same command again to continue; .on(memory=...) asks for more, .on(retries=...) forgives more",
    )


def _vanished(work: Work) -> Failure:
    return lost(
        Cause.EXCEPTION,
        "the artifact was committed and is gone already",
        where=f"step {work.name}",
        hint="see who deletes from the store while a run goes on",
    )
