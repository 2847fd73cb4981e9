"""How a run stands: its record, its events, how it was sent and who asked it to stop, made one.

Invariant: every screen and every JSON of a run is made from here, so that they cannot disagree. Of a run that has ended
the record has the last word, its events tell the rest; what is damaged is named, never guessed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from marin import fs
from marin.base.errors import StoreError
from marin.base.units import format_seconds
from marin.store import EventReader, Store, Submission, layout, read_stop, read_stop_now, read_submission, records
from marin.view.liveness import run_state
from marin.view.moments import moment_text, seconds_between
from marin.view.progress import ENDED, RunProgress

SOON_SECONDS = 10.0
"""So long after its start a run may have told nothing yet."""
KEPT = "what was finished is kept; running the pipeline again continues there"

Record = dict[str, Any]  # Any: JSON


class DamagedRun(StoreError):
    """A run's own record is damaged or gone: nothing certain can be said of it, and waiting does not help."""


@dataclass(frozen=True)
class Stop:
    """A request to stop that stands."""

    user: str
    asked: str
    now: bool
    """Whether what is in flight is ended at once."""


@dataclass(frozen=True)
class Standing:
    """One run at one moment."""

    run: str
    store: str
    state: str
    """running, done, failed or stopped; `waiting` before it has begun, `lost` when its driver is gone."""
    record: Record
    progress: RunProgress
    submission: Submission | None
    stop: Stop | None
    damage: str
    """What of its events is damaged or missing; empty when nothing is."""
    now: str
    """When the run ended, or else this moment."""

    @property
    def error(self) -> Mapping[str, Any] | None:
        """What ended the run as a whole, if anything did."""
        return self.record.get("error") or None

    @property
    def seconds(self) -> float | None:
        """How long the run took, or has taken; None before it has begun."""
        return seconds_between(str(self.record.get("started") or ""), self.now)

    def to_json(self, next_command: str | None) -> Record:
        """Return the object that `marin status --json` and `marin watch --json` show."""
        sent, stop = self.submission, self.stop
        return {
            "run": self.run,
            "state": self.state,
            "store": self.store,
            "started": self.record.get("started"),
            "finished": self.record.get("finished"),
            "last_event": self.progress.last or None,
            "ray_job": sent.ray_job if sent else None,
            "submitted": {"at": sent.at, "address": sent.address, "ray_job": sent.ray_job} if sent else None,
            "stop_asked": stop.asked if stop else None,
            "stop": {"user": stop.user, "asked": stop.asked, "now": stop.now} if stop else None,
            "error": self.error,
            "damage": self.damage or None,
            "next": next_command,
            "steps": [row.to_json(self.now) for row in self.progress.rows.values()],
        }


def standing(store: Store, run: str, *, state: str | None = None) -> Standing:
    """Return how a run stands now; `state` is what somebody who has watched it knows. DamagedRun for its record."""
    found = read_record(store, run)
    record = found or {}
    state = state if state == "lost" else run_state(store, run, found)
    progress, damage = _told(store, run, record)
    damage = damage or _missing(store, run, record, progress, state)
    if state not in ("running", "waiting", "lost"):
        _settle(progress, record)
    now = str(record.get("finished") or (progress.last if state == "lost" else "") or _now())
    return Standing(
        run=run,
        store=store.url,
        state=state,
        record=record,
        progress=progress,
        submission=read_submission(store.url, run),
        stop=stop_of(store, run),
        damage=damage,
        now=now,
    )


def read_record(store: Store, run: str) -> Record | None:
    """Return a run's record; None while it is only submitted. DamagedRun when it is damaged or gone."""
    url = fs.join(layout.run_folder(store.url, run), "run.json")
    try:
        data = fs.read(url)
    except fs.NotFound as error:
        files = set(fs.list_folder(layout.run_folder(store.url, run)))
        if "submission.json" in files and not files & {"heartbeat.json", "events"}:
            return None
        if "run.json" in files:  # it has begun this moment
            return store.read_run(run)
        hint = (
            KEPT if files else "was the store moved or deleted? A run that finds its record gone stops after a minute"
        )
        raise DamagedRun(f"the record of run {run} is missing", where=url, hint=hint) from error
    problem = records.problem_of(data, "run")
    if problem is not None:
        raise DamagedRun(f"the record of run {run} is damaged: it {problem}", where=url, hint=KEPT)
    return records.decode(data, "run", where=url)


def stop_of(store: Store, run: str) -> Stop | None:
    """Return the request to stop that stands; the one to stop at once counts most."""
    asked, now = read_stop(store.url, run), read_stop_now(store.url, run)
    record = now or asked
    return Stop(str(record["user"]), str(record["asked"]), now is not None) if record else None


def not_begun(sent: Submission) -> str:
    """Return how long a run that was sent to a cluster has waited there."""
    waited = format_seconds(seconds_between(sent.at, _now()) or 0.0)
    sent_to = f"submitted {moment_text(sent.at)} as Ray job {sent.ray_job} to {sent.address}"
    return f"{sent_to}; not begun for {waited}"


def _told(store: Store, run: str, record: Record) -> tuple[RunProgress, str]:
    """Return a run's rows, folded from its events, and what of these could not be read."""
    progress = run_rows(record)
    reader = EventReader(store.url, run, warn=lambda _: None)
    progress.apply(reader.poll())
    count = sum(reader.damaged.values())
    if not count:
        return progress, ""
    files = ", ".join(sorted(reader.damaged)[:3]) + (" and others" if len(reader.damaged) > 3 else "")
    return progress, f"{count} line{'s' if count > 1 else ''} of {files} cannot be read, in {_events(store, run)}"


def run_rows(record: Record) -> RunProgress:
    """Return the rows of a run's steps, of which nothing is known yet."""
    return RunProgress.of((str(step.get("name")), str(step.get("step"))) for step in record.get("steps") or [])


def _missing(store: Store, run: str, record: Record, progress: RunProgress, state: str) -> str:
    """Return which events must have been there and are not; those of the last seconds may be on their way."""
    since = str(record.get("finished") or record.get("started") or "")
    if not progress.rows or (seconds_between(since, _now()) or 0) < SOON_SECONDS:
        return ""
    if not progress.last:
        known = "" if record.get("finished") else "; how its steps stand is not known"
        return f"all events are missing, in {_events(store, run)}{known}"
    if state in ("running", "lost"):
        return ""
    untold = [step for step in record["steps"] if step.get("state") in ENDED and not _is_told(progress, step)]
    return (
        f"events of {len(untold)} of {len(progress.rows)} steps are missing, in {_events(store, run)}" if untold else ""
    )


def _is_told(progress: RunProgress, step: Mapping[str, Any]) -> bool:
    row = progress.rows.get(str(step.get("name")))
    return row is not None and row.state in ENDED


def _settle(progress: RunProgress, record: Record) -> None:
    """Let the record of a run that has ended say what it knows; a step that had not ended was stopped with the run."""
    for step in record.get("steps") or ():
        row = progress.rows[str(step.get("name"))]
        state = next((each for each in (step.get("state"), row.state) if each in ENDED), "stopped")
        error = step.get("error") or None
        if state != row.state:
            row.state, row.detail = state, str(error.get("message", "")) if error else ""
        row.fingerprint = step.get("fingerprint") or row.fingerprint
        row.digest, row.artifact, row.error = step.get("digest"), step.get("artifact"), error
        row.metrics = dict(step.get("metrics") or row.metrics)
        if any((step.get("shards") or {}).values()):
            row.shards = dict(step["shards"])
        if "attempts" in step:
            row.attempts, row.took = int(step["attempts"]), float(step.get("seconds") or 0)


def _events(store: Store, run: str) -> str:
    return fs.join(layout.run_folder(store.url, run), "events")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
