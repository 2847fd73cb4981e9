"""The engine: a state machine that takes a plan to its end, over a `Backend` and a store.

Invariant: what is committed is never run again, and nothing is started before all its parents are committed. The
resolved fingerprint of a step is computed at that moment, from its parents' output digests (early cutoff). One thread
moves steps; where the store answers late, it is asked about many at once. It imports neither Ray nor torch; when
everything is cached no backend is opened.
"""

import functools
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from marin import fs
from marin.base.errors import StoreError
from marin.base.units import format_seconds
from marin.graph.plan import Plan, resolve
from marin.graph.produced import Produced
from marin.graph.recipe import Accepted
from marin.run.backend import Backend, Ended
from marin.run.claims import Claim, Claims, Outcome
from marin.run.drifted import DriftWatch, refusal_of, words_of
from marin.run.errands import Errands
from marin.run.failure import Failure, lost
from marin.run.placement import kind_of
from marin.run.planner import found_in
from marin.run.result import RunResult, StepResult
from marin.run.retry import Cause
from marin.run.stopping import Stopping
from marin.run.work import Work
from marin.run.works import Works
from marin.store import EventWriter, Heartbeat, Holder, Lease, Leases, Producer, Store
from marin.store.events import begun

log = logging.getLogger(__name__)

BUSY_SECONDS = 1.0
ANSWER_SECONDS = 0.02
"""How late the end of an attempt may be noticed while the store is asked."""
ERRANDS = 64
"""Steps about which a store that answers late is asked at once."""

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
        self._claims = Claims(store, leases)
        self._errands = Errands()
        self._heartbeat = heartbeat
        self._events = events
        self._producer = producer
        self._code_folders = code_folders
        self._on_busy = on_busy
        self._stopping = stopping or Stopping(store.url, run, clock=clock)
        self._clock = clock
        self._pause = pause
        self._works = Works(Plan(()), events)
        self._known: dict[str, Produced] = {}
        self._startable: deque[Work] = deque()
        self._later: list[tuple[float, Work]] = []
        self._in_flight: dict[str, Work] = {}
        self._claiming = 0
        self._beating = False
        self._ending = False
        self._accepted: Accepted = {}
        self._drift = DriftWatch(Plan(()))

    def run(self, plan: Plan) -> RunResult:
        """Take every step to its end, or stop when asked: nothing runs on then, no lease is kept.

        A request lets what is in flight keep its work and end; a KeyboardInterrupt waits for nothing.
        """
        self._accepted, self._drift = plan.accepted, DriftWatch(plan)
        self._works = Works(plan, self._events)
        self._look(plan)
        stopped = False
        try:
            while self._works.any_open and not self._stopping.asked:
                self._turn()
            if self._works.any_open:
                stopped = True
                self._let_end()
        except KeyboardInterrupt:
            stopped = True
        finally:
            self._wind_up()
        return RunResult(self._run, "stopped" if stopped else self._works.state, self._store.url, self.steps)

    @property
    def steps(self) -> tuple[StepResult, ...]:
        """What has come of each step so far; also after `run` has raised."""
        return self._works.results()

    def _look(self, plan: Plan) -> None:
        """Look up the results that there are, of all steps whose fingerprint is known, at once."""
        if all(planned.state == "cached" for planned in plan.steps):  # nothing will be read: the plan's word will do
            self._known = {each.produced.fingerprint: each.produced for each in plan.steps if each.produced}
            return
        known = [(each.step.step_name(), each.fingerprint) for each in plan.steps if each.fingerprint is not None]
        self._known = found_in(self._store, known)

    def _turn(self) -> None:
        """Do all that can be done now, then wait for something to end."""
        while self._works.resolvable:
            self._resolve()
        now = self._clock()
        due = [work for at, work in self._later if at <= now]
        self._later = [(at, work) for at, work in self._later if at > now]
        self._startable.extend(due)
        while self._startable and self._has_room():
            work = self._startable.popleft()
            self._claim(work) if work.lease is None else self._start(work)
        self._check_fence()
        if self._backend is not None and (self._in_flight or self._errands.waiting):
            self._listen(self._backend)
            self._say_what_waits(self._backend)
        elif self._later and not self._works.resolvable and not self._startable:
            self._pause(max(0.0, min(BUSY_SECONDS, min(at for at, _ in self._later) - now)))

    def _has_room(self) -> bool:
        """Whether another attempt could start now; before there is a backend, one step is tried after the other."""
        return len(self._in_flight) + self._claiming < (1 if self._backend is None else self._backend.width)

    def _listen(self, backend: Backend) -> None:
        """Wait for an answer of the store or for the end of an attempt."""
        asked = self._errands.waiting > 0
        if asked:
            self._errands.collect(ANSWER_SECONDS if self._in_flight else BUSY_SECONDS)
        for ended in backend.wait(0.0 if asked else BUSY_SECONDS):
            self._settle(ended)

    def _let_end(self) -> None:
        """Wait for what is in flight to keep its work and end; end what does not in its time."""
        for attempt, work in self._in_flight.items():
            detail = "stopping" if kind_of(work.planned.step) == "plain" else "stopping: it keeps what it has"
            self._works.emit(work, "state", state="running", attempt=attempt, detail=detail)
        self._ending = True
        while self._backend is not None and (self._in_flight or self._errands.waiting):
            for attempt, work in list(self._in_flight.items()):
                if self._stopping.is_over(kind_of(work.planned.step)):
                    self._backend.end(attempt)
                    self._settle(Ended(attempt, cause=Cause.STOPPED, message="ended before it was done"))
            self._check_fence()
            self._listen(self._backend)

    def _check_fence(self) -> None:
        if self._beating and self._heartbeat.fenced:
            raise StoreError(
                "this run could not reach its store for a minute and has stopped, as another may take over",
                where=self._store.url,
                hint="run the same command again once the store answers; what was committed is kept",
            )

    def _resolve(self) -> None:
        """Compute the fingerprints that count of the steps whose parents are all committed, and look them up."""
        works, asked = list(self._works.resolvable), []
        self._works.resolvable.clear()
        for work in works:
            planned = work.planned
            parents = self._works.parents_of(work)
            if planned.fingerprint is not None and all(parent.state == "cached" for parent in parents):
                work.resolved = planned.fingerprint
                self._looked_up([work], {})
            else:
                digests = [parent.produced.digest for parent in parents if parent.produced is not None]
                work.resolved = resolve(planned.step, digests, planned.pins, self._accepted).fingerprint
                asked.append(work)
        if asked:
            keys = [(work.step_name, work.fingerprint) for work in asked]
            self._errands.run(lambda: found_in(self._store, keys), functools.partial(self._looked_up, asked))

    def _looked_up(self, works: Sequence[Work], found: Mapping[str, Produced]) -> None:
        """Take in which results there are."""
        for work in works:
            produced = self._kept(work, found.get(work.fingerprint) or self._known.get(work.fingerprint))
            if produced is not None:
                self._works.complete(work, produced, "cached")
            elif not work.ended:
                self._startable.append(work)

    def _kept(self, work: Work, found: Produced | None) -> Produced | None:
        """Return a result unless its step's source has changed and it makes way, or the step fails for it."""
        drift = self._drift.of(work, found) if found is not None else None
        if found is None or drift is None:
            return found
        if self._drift.on_drift == "warn":
            work.note = words_of(drift)
            return found
        work.replaces = found.attempt
        if self._drift.on_drift == "fail":
            self._fail(work, refusal_of(drift))
        return None

    def _claim(self, work: Work) -> None:
        """Ask for the lease, and whether there is still something to do."""
        if not self._beating:
            self._heartbeat.start()
            self._beating = True
        self._claiming += 1
        self._errands.run(lambda: self._claims.claim(work), functools.partial(self._claimed, work))

    def _claimed(self, work: Work, claim: Claim) -> None:
        """Start an attempt under the lease; wait politely while another run holds it."""
        self._claiming -= 1
        if isinstance(claim.taken, Lease):
            work.lease = claim.taken
        produced = self._kept(work, claim.produced)
        if work.ended:
            return
        if produced is not None:
            self._release(work)
            self._works.complete(work, produced, "cached")
        elif isinstance(claim.taken, Holder):
            self._meet(work, claim.taken)
        elif not self._ending:
            self._start(work)

    def _start(self, work: Work) -> None:
        """Submit an attempt, unless the run was asked to stop while the backend started."""
        backend = self._ensure_backend()
        if self._stopping.asked:
            return
        work.attempts += 1
        work.began = self._clock()
        order = work.order(
            self._works.parents_of(work),
            store=self._store,
            run=self._run,
            producer=self._producer(),
            accepted=self._accepted,
        )
        self._in_flight[order.identity.attempt] = work
        work.state = "running"
        backend.submit(order, work.planned.step)

    def _meet(self, work: Work, holder: Holder) -> None:
        """Do what was asked for where another run makes a result: wait for it, leave it to that run, or fail."""
        detail = f"run {holder.run} of {holder.user}@{holder.host} makes it since {holder.since}"
        if self._on_busy == "wait" or holder.run == self._run:  # another step of this run, with the same fingerprint
            if work.busy_with != holder.run:
                work.busy_with = holder.run
                nearest = work.planned.cause.nearest if work.planned.cause else None
                usual = f"; an earlier one took {format_seconds(nearest.seconds)}" if nearest else ""
                self._works.emit(work, "state", state="waiting", detail=f"{detail}{usual}")
            self._later.append((self._clock() + BUSY_SECONDS, work))
        elif self._on_busy == "skip":
            hint = "run it again once that run has ended"
            self._works.leave(work, f"left to another run: {detail}", hint=hint)
        else:
            hint = "--on-busy wait takes its result when it is done; --on-busy skip goes on with the rest"
            self._fail(work, lost(Cause.EXCEPTION, f"busy: {detail}", where=f"step {work.name}", hint=hint))

    def _ensure_backend(self) -> Backend:
        """Return the backend; at its start, refuse at once whatever it can never place."""
        if self._backend is None:
            backend = self._open_backend()
            backend.start(self._code_folders, self._run)
            self._backend = backend
            if not fs.is_local(self._store.url):
                self._errands.open(min(ERRANDS, 2 * backend.width) if backend.width > 1 else 1)
            left = self._works.open
            for work in left:
                backend.check(work.name, work.planned.step)
            for warning in backend.preflight([work.planned.step for work in left], self._store.url):
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
                self._works.emit(work, "state", state="waiting", attempt=attempt, pending=True, detail=why)

    def _settle(self, ended: Ended) -> None:
        """Ask what an attempt that has ended has come to."""
        work = self._in_flight.pop(ended.attempt)
        work.seconds += ended.report.seconds if ended.report else self._clock() - work.began
        work.report = ended.report
        self._errands.run(lambda: self._claims.outcome(work, ended), functools.partial(self._settled, work, ended))

    def _settled(self, work: Work, ended: Ended, outcome: Outcome) -> None:
        """Take in the end of an attempt: done, another try, or failed."""
        if outcome.produced is not None:
            self._release(work)
            self._works.complete(work, outcome.produced, "done")
            return
        failure = outcome.failure
        assert failure is not None
        if ended.report is None:
            self._works.emit(work, "exit", attempt=ended.attempt, cause=str(failure.cause), message=failure.message)
        if failure.cause is Cause.STOPPED:  # perhaps told before this process was
            self._stopping.ask()
        if failure.cause is Cause.STOPPED or (work.budget.allows(failure.cause) and self._stopping.asked):
            self._release(work)
            self._works.move(work, "stopped", detail=failure.message)
            return
        if work.budget.allows(failure.cause):
            work.budget = work.budget.after(failure.cause)
            work.state = "waiting"
            self._works.emit(work, "state", state="waiting", detail=f"{failure.message}; trying again")
            self._later.append((self._clock() + work.budget.delay, work))
        else:
            self._fail(work, failure)

    def _fail(self, work: Work, failure: Failure) -> None:
        self._release(work)
        self._works.fail(work, failure)

    def _wind_up(self) -> None:
        """Leave nothing behind: stop what runs, give every lease back. Once all has ended, this does nothing."""
        self._ending = True
        if self._backend is not None and self._in_flight:
            self._backend.stop()
        self._errands.drain()  # what has been claimed by now is to be given back
        for work in self._works.open:
            self._release(work)
            self._works.move(work, "stopped")
        self._errands.close()
        if self._beating:
            self._heartbeat.stop()

    def _release(self, work: Work) -> None:
        if work.lease is not None:
            lease, work.lease = work.lease, None
            self._errands.run(lambda: self._claims.release(lease), lambda _: None)
