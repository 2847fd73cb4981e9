"""The engine: a state machine that takes a plan to its end, over a `Backend` and a store.

Invariant: what is committed is never run again, and nothing is started before all its parents are committed. The
resolved fingerprint of a step is computed at that moment, from its parents' output digests (early cutoff). It imports
neither Ray nor torch; when everything is cached no backend is opened.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Literal

from marin.base.errors import ConfigurationError, StoreError
from marin.base.units import format_seconds
from marin.graph.drift import Drift, OnDrift, has_drifted, refuse_drift
from marin.graph.plan import Plan, resolve
from marin.graph.produced import Produced
from marin.graph.recipe import Accepted, source_of
from marin.graph.step import dependencies
from marin.run.backend import Backend, Ended
from marin.run.failure import Failure, explain, lost
from marin.run.order import Identity, Order, ParentKey
from marin.run.outcome import failure_of
from marin.run.placement import kind_of
from marin.run.planner import found_in, recalled_in
from marin.run.result import RunResult, RunState, State, StepResult
from marin.run.retry import Budget, Cause
from marin.run.stopping import Stopping
from marin.run.work import ENDED, Work
from marin.store import EventWriter, Heartbeat, Holder, Lease, Leases, Producer, Store, layout
from marin.store.events import begun

log = logging.getLogger(__name__)

BUSY_SECONDS = 1.0

OnBusy = Literal["wait", "skip", "fail"]
"""What a run does about a step that another run is making."""


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
        on_busy: OnBusy = "wait",
        stopping: Stopping | None = None,
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
        self._on_busy = on_busy
        self._stopping = stopping or Stopping(store.url, run, clock=clock)
        self._clock = clock
        self._pause = pause
        self._works: dict[str, Work] = {}
        self._known: dict[str, Produced] = {}
        self._resolvable: deque[Work] = deque()
        self._startable: deque[Work] = deque()
        self._later: list[tuple[float, Work]] = []
        self._in_flight: dict[str, Work] = {}
        self._open = 0
        self._beating = False
        self._accepted: Accepted = {}
        self._on_drift: OnDrift = "warn"

    def run(self, plan: Plan) -> RunResult:
        """Take every step to its end, or stop when asked: nothing runs on then, no lease is kept.

        A request lets what is in flight keep its work and end; a KeyboardInterrupt waits for nothing.
        """
        self._accepted, self._on_drift = plan.accepted, plan.on_drift
        self._enlist(plan)
        state: RunState | None = None
        try:
            while self._open and not self._stopping.asked:
                self._turn()
            if self._open:
                state = "stopped"
                self._let_end()
        except KeyboardInterrupt:
            state = "stopped"
        finally:
            self._wind_up()
        ended = {work.state for work in self._works.values()}
        if state is None:  # a map or gang may have seen a request, and kept what it has, before this process did
            state = "stopped" if "stopped" in ended else "done" if ended <= {"cached", "done"} else "failed"
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
        if all(planned.state == "cached" for planned in plan.steps):  # nothing will be read: the plan's word will do
            self._known = {each.produced.fingerprint: each.produced for each in plan.steps if each.produced}
            return
        known = [(each.step.step_name(), each.fingerprint) for each in plan.steps if each.fingerprint is not None]
        self._known = found_in(self._store, known)

    def _result_of(self, work: Work) -> Produced | None:
        """Return what is committed for a step now with all its files, unless it is to make way."""
        found = recalled_in(self._store, [(work.step_name, work.fingerprint)]).get(work.fingerprint)
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
        self._check_fence()
        if self._backend is not None and self._in_flight:
            for ended in self._backend.wait(BUSY_SECONDS):
                self._settle(ended)
            self._say_what_waits(self._backend)
        elif self._later and not self._resolvable and not self._startable:
            self._pause(max(0.0, min(BUSY_SECONDS, min(at for at, _ in self._later) - now)))

    def _let_end(self) -> None:
        """Wait for what is in flight to keep its work and end; end what does not in its time."""
        for attempt, work in self._in_flight.items():
            detail = "stopping" if kind_of(work.planned.step) == "plain" else "stopping: it keeps what it has"
            self._emit(work, "state", state="running", attempt=attempt, detail=detail)
        while self._backend is not None and self._in_flight:
            for attempt, work in list(self._in_flight.items()):
                if self._stopping.is_over(kind_of(work.planned.step)):
                    self._backend.end(attempt)
                    self._settle(Ended(attempt, cause=Cause.STOPPED, message="ended before it was done"))
            self._check_fence()
            for ended in self._backend.wait(BUSY_SECONDS):
                self._settle(ended)

    def _check_fence(self) -> None:
        if self._beating and self._heartbeat.fenced:
            raise StoreError(
                "this run could not reach its store for a minute and has stopped, as another may take over",
                where=self._store.url,
                hint="run the same command again once the store answers; what was committed is kept",
            )

    def _resolve(self, work: Work) -> None:
        """All parents are committed: compute the fingerprint that counts, and look it up."""
        planned = work.planned
        parents = [self._works[name] for name in planned.parents]
        if planned.fingerprint is not None and all(parent.state == "cached" for parent in parents):
            work.resolved = planned.fingerprint
        else:
            digests = [parent.produced.digest for parent in parents if parent.produced is not None]
            work.resolved = resolve(planned.step, digests, planned.pins, self._accepted).fingerprint
            self._known.update(found_in(self._store, [(work.step_name, work.fingerprint)]))
        produced = self._known.get(work.fingerprint)
        if produced is not None and self._has_drifted(work, produced):
            work.replaces, produced = produced.attempt, None
        if work.ended:
            return
        if produced is not None:
            self._complete(work, produced, "cached")
        else:
            self._startable.append(work)

    def _has_drifted(self, work: Work, produced: Produced) -> bool:
        """Whether a result makes way because its step's source has changed; where that is refused, the step fails."""
        step, on_drift = work.planned.step, self._on_drift
        source = source_of(step) if on_drift != "warn" and step.version is not None else None
        if source is None or not has_drifted(produced.source, source.digest, self._accepted):
            return False
        if on_drift == "fail":
            version = int(step.version or 0)
            found = Drift(work.name, work.step_name, version, str(produced.source), source.digest, ())
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
        produced = self._result_of(work)
        if produced is not None and self._has_drifted(work, produced):
            work.replaces, produced = produced.attempt, None
        if work.ended:
            return False
        if produced is not None:
            self._release(work)
            self._complete(work, produced, "cached")
        elif isinstance(taken, Holder):
            self._meet(work, taken)
        return work.lease is not None

    def _meet(self, work: Work, holder: Holder) -> None:
        """Do what was asked for where another run makes a result: wait for it, leave it to that run, or fail."""
        detail = f"run {holder.run} of {holder.user}@{holder.host} makes it since {holder.since}"
        if self._on_busy == "wait":
            if work.busy_with != holder.run:
                work.busy_with = holder.run
                nearest = work.planned.cause.nearest if work.planned.cause else None
                usual = f"; an earlier one took {format_seconds(nearest.seconds)}" if nearest else ""
                self._emit(work, "state", state="waiting", detail=f"{detail}{usual}")
            self._later.append((self._clock() + BUSY_SECONDS, work))
        elif self._on_busy == "skip":
            hint = "run it again once that run has ended"
            self._block(work, f"left to another run: {detail}", hint=hint)
            self._block_below(work)
        else:
            hint = "--on-busy wait takes its result when it is done; --on-busy skip goes on with the rest"
            self._fail(work, lost(Cause.EXCEPTION, f"busy: {detail}", where=f"step {work.name}", hint=hint))

    def _ensure_backend(self) -> Backend:
        """Return the backend; at its start, refuse at once whatever it can never place."""
        if self._backend is None:
            backend = self._open_backend()
            backend.start(self._code_folders, self._run)
            self._backend = backend
            for work in self._works.values():
                if not work.ended:
                    backend.check(work.name, work.planned.step)
            left = [work.planned.step for work in self._works.values() if not work.ended]
            for warning in backend.preflight(left, self._store.url):
                log.warning("%s", warning)
                self._events.emit("log", line=warning)
        return self._backend

    def _say_what_waits(self, backend: Backend) -> None:
        """Tell whoever watches what attempts wait for that the cluster has not begun."""
        try:
            said = backend.waiting(lambda attempts: begun(self._store.url, self._run, attempts))
        except StoreError as error:  # only words are lost; what matters asks the store itself
            log.warning("which attempts have begun is not known (%s)", error)
            return
        for attempt, why in said.items():
            if work := self._in_flight.get(attempt):
                self._emit(work, "state", state="waiting", attempt=attempt, pending=True, detail=why)

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
            recipe=planned.recipe,
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
        # A worker that was lost, or whose commit had no answer, may have committed: a success is never turned into a
        # failure. One that reports success is believed over a single read, which may have been damaged on its way.
        produced = self._result_of(work)
        if produced is None and ended.report is not None and ended.report.failure is None:
            produced = self._result_of(work)
        if produced is not None:
            self._release(work)
            self._complete(work, produced, "done")
            return
        folder = self._store.attempt_folder(work.step_name, work.fingerprint, ended.attempt)
        failure = failure_of(work, ended, folder)
        if ended.report is None:
            self._emit(work, "exit", attempt=ended.attempt, cause=str(failure.cause), message=failure.message)
        if failure.cause is Cause.STOPPED:  # perhaps told before this process was
            self._stopping.ask()
        if failure.cause is Cause.STOPPED or (work.budget.allows(failure.cause) and self._stopping.asked):
            self._release(work)
            self._move(work, "stopped", detail=failure.message)
            return
        if work.budget.allows(failure.cause):
            work.budget = work.budget.after(failure.cause)
            work.state = "waiting"
            self._emit(work, "state", state="waiting", detail=f"{failure.message}; trying again")
            self._later.append((self._clock() + work.budget.delay, work))
        else:
            self._fail(work, failure)

    def _complete(self, work: Work, produced: Produced, state: Literal["cached", "done"]) -> None:
        work.produced = produced
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
        self._block_below(work)

    def _block_below(self, work: Work) -> None:
        blocked = deque(work.children)
        while blocked:
            child = blocked.popleft()
            if not child.ended:
                self._block(child, f"needs {work.name}", hint=f"it follows once {work.name} is done")
                blocked.extend(child.children)

    def _block(self, work: Work, why: str, *, hint: str) -> None:
        work.failure = Failure(Cause.STOPPED, "blocked", why, f"step {work.name}", hint)
        self._move(work, "blocked", detail=why)

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
        known = {"fingerprint": work.resolved} if work.resolved else {}
        self._events.emit(kind, step=work.step_name, name=work.name, **known, **fields)

    def _result(self, work: Work) -> StepResult:
        if work.produced is None:
            return work.result(None)
        return work.result(layout.artifact_folder(work.produced.store, work.step_name, work.fingerprint))
