"""The engine: a state machine that takes a plan to its end, over a `Backend` and a store.

Invariant: what is committed is never run again, and nothing is started before all its parents are committed. The
resolved fingerprint of a step is computed at that moment, from its parents' output digests (early cutoff). It imports
neither Ray nor torch; when everything is cached no backend is opened.
"""

import json
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Literal

from marin import fs
from marin.base.errors import ConfigurationError, StoreError
from marin.graph.drift import Drift, OnDrift, has_drifted, refuse_drift
from marin.graph.plan import Plan, resolve
from marin.graph.recipe import Accepted, source_of
from marin.graph.step import dependencies
from marin.run.backend import Backend, Ended
from marin.run.failure import Failure, explain, lost
from marin.run.order import Identity, Order, ParentKey
from marin.run.result import RunResult, RunState, State, StepResult
from marin.run.retry import Budget, Cause
from marin.run.work import ENDED, Work
from marin.store import EventWriter, Heartbeat, Holder, Lease, Leases, Manifest, Producer, Store

BUSY_SECONDS = 1.0


class Engine:
    """Runs one plan; a new object for each run."""

    def __init__(
        self,
        store: Store,
        backend: Callable[[], Backend],
        *,
        run: str,
        leases: Leases,
        heartbeat: Heartbeat,
        events: EventWriter,
        producer: Callable[[], Producer],
        code_folders: Sequence[str],
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._store = store
        self._open_backend = backend
        self._backend: Backend | None = None
        self._run = run
        self._leases = leases
        self._heartbeat = heartbeat
        self._events = events
        self._producer = producer
        self._code_folders = code_folders
        self._clock = clock
        self._pause = pause
        self._works: dict[str, Work] = {}
        self._known: dict[str, Manifest] = {}
        self._resolvable: deque[Work] = deque()
        self._startable: deque[Work] = deque()
        self._later: list[tuple[float, Work]] = []
        self._in_flight: dict[str, Work] = {}
        self._open = 0
        self._beating = False
        self._accepted: Accepted = {}
        self._on_drift: OnDrift = "warn"

    def run(self, plan: Plan) -> RunResult:
        """Take every step to its end. The first interrupt stops cleanly: nothing runs on, no lease is kept."""
        self._accepted, self._on_drift = plan.accepted, plan.on_drift
        self._enlist(plan)
        state: RunState | None = None
        try:
            while self._open:
                self._turn()
        except KeyboardInterrupt:
            state = "stopped"
        finally:
            self._wind_up()
        ended = {work.state for work in self._works.values()}
        state = state or ("done" if ended <= {"cached", "done"} else "failed")
        return RunResult(self._run, state, self._store.url, tuple(self._result(work) for work in self._works.values()))

    def _enlist(self, plan: Plan) -> None:
        for planned in plan.steps:
            budget = Budget(planned.step.placed.resources.retries)
            work = Work(planned, budget, unmet=len(set(planned.parents)))
            self._works[planned.name] = work
            for parent in set(planned.parents):
                self._works[parent].children.append(work)
            if not work.unmet:
                self._resolvable.append(work)
        self._open = len(self._works)
        resolved = [work.planned for work in self._works.values() if work.planned.resolved is not None]
        self._known = self._hits([(p.step.step_name(), p.resolved.fingerprint) for p in resolved if p.resolved])

    def _hits(self, keys: Sequence[tuple[str, str]]) -> dict[str, Manifest]:
        """Return the committed manifests whose files are there; a hit whose files are gone is a miss."""
        return self._store.hits(keys)

    def _result_of(self, work: Work) -> Manifest | None:
        """Return what is committed for a step now, unless it is to make way."""
        found = self._hits([(work.step_name, work.fingerprint)]).get(work.fingerprint)
        return found if found is not None and found.attempt != work.replaces else None

    def _turn(self) -> None:
        """Do all that can be done now, then wait for something to end."""
        while self._resolvable:
            self._resolve(self._resolvable.popleft())
        now = self._clock()
        due = [work for at, work in self._later if at <= now]
        self._later = [(at, work) for at, work in self._later if at > now]
        self._startable.extend(due)
        while self._startable and (self._backend is None or len(self._in_flight) < self._backend.width):
            self._start(self._startable.popleft())
        if self._beating and self._heartbeat.fenced:
            raise StoreError(
                "this run could not reach its store for a minute and has stopped, as another may take over",
                where=self._store.url,
                hint="run the same command again once the store answers; what was committed is kept",
            )
        if self._backend is not None and self._in_flight:
            for ended in self._backend.wait(BUSY_SECONDS if self._later else 5 * BUSY_SECONDS):
                self._settle(ended)
        elif self._later and not self._resolvable and not self._startable:
            self._pause(max(0.0, min(at for at, _ in self._later) - now))

    def _resolve(self, work: Work) -> None:
        """All parents are committed: compute the fingerprint that counts, and look it up."""
        planned = work.planned
        parents = [self._works[name] for name in planned.parents]
        if planned.resolved is not None and all(parent.state == "cached" for parent in parents):
            work.recipe = planned.resolved
        else:
            digests = [parent.manifest.digest for parent in parents if parent.manifest is not None]
            work.recipe = resolve(planned.step, digests, planned.pins, self._accepted)
            self._known.update(self._hits([(work.step_name, work.fingerprint)]))
        manifest = self._known.get(work.fingerprint)
        if manifest is not None and self._has_drifted(work, manifest):
            work.replaces, manifest = manifest.attempt, None
        if work.ended:
            return
        if manifest is not None:
            self._complete(work, manifest, "cached")
        else:
            self._startable.append(work)

    def _has_drifted(self, work: Work, manifest: Manifest) -> bool:
        """Whether a result makes way because its step's source has changed; where that is refused, the step fails."""
        step, on_drift = work.planned.step, self._on_drift
        source = source_of(step) if on_drift != "warn" and step.version is not None else None
        if source is None or not has_drifted(manifest.source, source.digest, self._accepted):
            return False
        if on_drift == "fail":
            version = int(step.version or 0)
            found = Drift(work.name, work.step_name, version, str(manifest.source), source.digest, ())
            try:
                refuse_drift([found], on_drift)
            except ConfigurationError as error:
                self._fail(work, explain(error, hint=error.hint))
        return True

    def _start(self, work: Work) -> None:
        """Take the lease and submit an attempt; wait politely while another run holds it."""
        if work.lease is None and not self._take_lease(work):
            return
        backend = self._ensure_backend()
        work.attempts += 1
        work.began = self._clock()
        order = self._order(work)
        self._in_flight[order.identity.attempt] = work
        work.state = "running"
        backend.submit(order, work.planned.step)

    def _take_lease(self, work: Work) -> bool:
        """Return whether the lease is ours and there is still something to do."""
        if not self._beating:
            self._heartbeat.start()
            self._beating = True
        taken = self._leases.acquire(work.step_name, work.fingerprint)
        if isinstance(taken, Lease):
            work.lease = taken
        # The holder may have committed since the first look, before it let the lease go.
        if manifest := self._result_of(work):
            self._release(work)
            self._complete(work, manifest, "cached")
        elif isinstance(taken, Holder):
            if work.busy_with != taken.run:
                work.busy_with = taken.run
                detail = f"run {taken.run} of {taken.user}@{taken.host} makes it since {taken.since}"
                self._emit(work, "state", state="waiting", detail=detail)
            self._later.append((self._clock() + BUSY_SECONDS, work))
        return work.lease is not None

    def _ensure_backend(self) -> Backend:
        """Return the backend; at its start, refuse at once whatever it can never place."""
        if self._backend is None:
            backend = self._open_backend()
            backend.start(self._code_folders, self._run)
            self._backend = backend
            for work in self._works.values():
                if not work.ended:
                    backend.check(work.name, work.planned.step)
        return self._backend

    def _order(self, work: Work) -> Order:
        planned = work.planned
        sources = [self._works[parent] for parent in planned.parents]
        parents = [
            ParentKey(path, source.step_name, source.fingerprint)
            for (path, _), source in zip(dependencies(planned.step), sources, strict=True)
        ]
        attempt = f"{self._run}-{work.fingerprint[:8]}-{work.attempts}"
        assert work.lease is not None
        read_from = tuple(upstream.url for upstream in self._store.upstreams)
        return Order(
            identity=Identity(
                self._store.url, self._run, work.name, work.step_name, work.fingerprint, attempt, read_from
            ),
            recipe=planned.recipe.fingerprint,
            parents=tuple(parents),
            pins=planned.pins,
            resources=planned.step.placed.resources,
            epoch=work.lease.epoch,
            producer=self._producer(),
            source=source.digest if (source := source_of(planned.step)) else None,
            accepted=self._accepted,
            replaces=work.replaces,
        )

    def _settle(self, ended: Ended) -> None:
        """Take in the end of an attempt: done, another try, or failed."""
        work = self._in_flight.pop(ended.attempt)
        work.seconds += self._clock() - work.began
        work.report = ended.report
        manifest = None
        if ended.report is None or ended.report.failure is None:
            # A worker that was lost may have committed before: a success is never turned into a failure.
            manifest = self._result_of(work)
        if manifest is not None:
            self._release(work)
            self._complete(work, manifest, "done")
            return
        if ended.report is not None:
            failure = ended.report.failure or _vanished(work)
        else:
            failure = self._left_behind(work, ended.attempt) or _without_report(work, ended)
            self._emit(work, "exit", attempt=ended.attempt, cause=str(failure.cause), message=failure.message)
        if work.budget.allows(failure.cause):
            work.budget = work.budget.after(failure.cause)
            work.state = "waiting"
            self._emit(work, "state", state="waiting", detail=f"{failure.message}; trying again")
            self._later.append((self._clock() + work.budget.delay, work))
        else:
            self._fail(work, failure)

    def _complete(self, work: Work, manifest: Manifest, state: Literal["cached", "done"]) -> None:
        work.manifest = manifest
        self._move(work, state)
        for child in work.children:
            child.unmet -= 1
            if not child.unmet and not child.ended:
                self._resolvable.append(child)

    def _fail(self, work: Work, failure: Failure) -> None:
        """Record a failure; everything downstream is blocked, every other branch goes on."""
        self._release(work)
        work.failure = failure
        self._move(work, "failed", detail=failure.message)
        blocked = deque(work.children)
        while blocked:
            child = blocked.popleft()
            if not child.ended:
                self._move(child, "blocked", detail=f"needs {work.name}")
                blocked.extend(child.children)

    def _wind_up(self) -> None:
        """Leave nothing behind: stop what runs, give every lease back. Once all has ended, this does nothing."""
        if self._backend is not None and self._in_flight:
            self._backend.stop()
        for work in self._works.values():
            if not work.ended:
                self._release(work)
                self._move(work, "stopped")
        if self._beating:
            self._heartbeat.stop()

    def _release(self, work: Work) -> None:
        if work.lease is not None:
            self._leases.release(work.lease)
            work.lease = None

    def _move(self, work: Work, state: State, **detail: str) -> None:
        self._open -= state in ENDED
        work.state = state
        self._emit(work, "state", state=state, **detail)

    def _emit(self, work: Work, kind: str, **fields: Any) -> None:  # Any: JSON of the event
        known = {"fingerprint": work.recipe.fingerprint} if work.recipe else {}
        self._events.emit(kind, step=work.step_name, name=work.name, **known, **fields)

    def _result(self, work: Work) -> StepResult:
        return work.result(self._store.artifact_url(work.manifest) if work.manifest is not None else None)

    def _left_behind(self, work: Work, attempt: str) -> Failure | None:
        """Return the failure that an attempt wrote down before it ended its own process."""
        folder = self._store.attempt_folder(work.step_name, work.fingerprint, attempt)
        try:
            record = json.loads(fs.read(fs.join(folder, "result.json")))["failure"]
        except (fs.NotFound, ValueError, KeyError, TypeError):
            return None
        return Failure(**{**record, "cause": Cause(record["cause"])}) if record else None


def _without_report(work: Work, ended: Ended) -> Failure:
    """Return the failure of an attempt whose worker left no report."""
    assert ended.cause is not None
    tries = f"attempt {work.attempts} of {work.budget.retries + 1}"
    return lost(
        ended.cause,
        f"{ended.message} ({tries})",
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
