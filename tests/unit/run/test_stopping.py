"""A run that is asked to stop: nothing new begins, what is in flight gets its time, nothing counts as failed."""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from marin import fs
from marin.graph.artifact import Value
from marin.graph.context import Context
from marin.graph.step import Step
from marin.run import api, stopping
from marin.run.attempt import execute
from marin.run.backend import Ended
from marin.run.backends.inline import InlineBackend, InlineWorkers
from marin.run.failure import lost
from marin.run.order import Order, Report
from marin.run.result import RunResult
from marin.run.retry import Cause
from marin.store import StopWatch, Store, ask_to_stop, ask_to_stop_now, read_stop
from marin.testing.clock import Clock


class Plain(Step[Value[int]]):
    number: int

    def run(self, ctx: Context) -> Value[int]:
        return Value.write(ctx.output, self.number)


class Mapped(Plain):
    def run(self, ctx: Context) -> Value[int]:
        return Value.write(ctx.output, len(ctx.map(abs, [])))


class SlowToStart(InlineBackend):
    """Stands for a cluster to which connecting takes long: meanwhile the terminal is closed."""

    def __init__(self, interrupted: threading.Event) -> None:
        super().__init__()
        self.interrupted = interrupted

    def start(self, code_folders: Sequence[str], run: str) -> None:
        self.interrupted.set()

    def submit(self, order: Order, step: Step) -> None:
        raise AssertionError("nothing is to begin")


class After(Step[Value[int]]):
    number: Step[Value[int]]

    def run(self, ctx: Context) -> Value[int]:
        return Value.write(ctx.output, ctx.load(self.number).value)


class Elsewhere(InlineBackend):
    """Stands for a cluster: attempts run until a test says how they end; each wait takes a second."""

    width = 8

    def __init__(self, clock: Clock, script: Callable[["Elsewhere", float], None]) -> None:
        super().__init__()
        self.clock = clock
        self.script = script
        self.running: dict[str, tuple[Order, Step]] = {}
        self.told: list[Ended] = []
        self.killed: dict[str, float] = {}
        self.begun = 0

    def submit(self, order: Order, step: Step) -> None:
        self.running[order.identity.attempt] = (order, step)
        self.begun += 1

    def wait(self, timeout: float) -> list[Ended]:
        self.clock.advance(1.0)
        self.script(self, self.clock())
        told, self.told = self.told, []
        return told

    def finish(self, name: str) -> None:
        for attempt, (order, step) in list(self.running.items()):
            if order.identity.name == name:
                del self.running[attempt]
                self.told.append(Ended(attempt, report=execute(order, lambda step=step: step, InlineWorkers())))

    def fail(self, cause: Cause) -> None:
        for attempt in list(self.running):
            del self.running[attempt]
            failure = lost(cause, "told to", where="", hint="again")
            self.told.append(Ended(attempt, report=Report(attempt, failure=failure)))

    def end(self, attempt: str) -> None:
        order, _ = self.running.pop(attempt)
        self.killed[order.identity.name] = self.clock()

    def stop(self) -> None:
        for attempt in list(self.running):
            self.end(attempt)


Runs = Callable[..., tuple[RunResult, Elsewhere]]


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runs:
    """Run steps over a scripted backend, all on one clock that only the backend moves."""

    def run(steps: list[Step], script: Callable[[Elsewhere, float], None], **options) -> tuple[RunResult, Elsewhere]:
        clock = Clock()
        made = stopping.Stopping

        def clocked(*arguments, **keywords):
            return made(*arguments, **keywords, clock=clock)

        monkeypatch.setattr(api, "Stopping", clocked)
        backend = Elsewhere(clock, script)
        planned = api.plan(steps, store=tmp_path)
        return api.run_plan(planned, store=tmp_path, run="run-1", backend=backend, **options), backend

    return run


def states(result: RunResult) -> list[str]:
    return [step.state for step in result.steps]


def left(store: Path) -> set[str]:
    """Return the leases that are held."""
    names = {
        file.url.rsplit("/leases/", 1)[0] + file.url.rsplit("/", 1)[1]
        for file in fs.list_files(str(store))
        if "/leases/" in file.url
    }
    return {name for name in names if name.replace(".json", ".released.json") not in names and "released" not in name}


def test_stop_lets_what_is_in_flight_end_and_begins_nothing_new(runs, tmp_path):
    def script(backend: Elsewhere, now: float) -> None:
        if now == 3:
            ask_to_stop(str(tmp_path), "run-1", user="ada")
        if now == 8:
            backend.finish("plain")

    result, backend = runs([After(number=Plain(number=1))], script)
    assert result.state == "stopped"
    assert states(result) == ["done", "stopped"]
    assert (backend.begun, backend.killed, left(tmp_path)) == (1, {}, set())
    assert Store.open(str(tmp_path), write=False).read_run("run-1")["state"] == "stopped"


def test_stop_ends_plain_steps_after_ten_seconds_and_maps_after_the_grace(runs, tmp_path):
    def script(backend: Elsewhere, now: float) -> None:
        if now == 2:
            ask_to_stop(str(tmp_path), "run-1", user="ada")

    result, backend = runs([Plain(number=1), Mapped(number=2)], script, grace=60.0)
    assert states(result) == ["stopped", "stopped"]
    assert backend.killed["plain"] in range(12, 16)  # the request is looked for every two seconds
    assert backend.killed["mapped"] in range(62, 66)
    assert left(tmp_path) == set()


def test_stop_now_waits_for_nothing(runs, tmp_path):
    def script(backend: Elsewhere, now: float) -> None:
        if now == 2:
            ask_to_stop_now(str(tmp_path), "run-1", user="ada")

    result, backend = runs([Mapped(number=2)], script)
    assert states(result) == ["stopped"]
    assert backend.killed["mapped"] <= 6


def test_interrupt_here_is_a_request_that_workers_see(runs, tmp_path):
    interrupted = threading.Event()
    watch = StopWatch(str(tmp_path), "run-1", interval=0.0)

    def script(backend: Elsewhere, now: float) -> None:
        if now == 2:
            interrupted.set()
        elif watch.asked:
            backend.fail(Cause.STOPPED)

    result, backend = runs([Mapped(number=1)], script, interrupted=interrupted)
    assert (result.state, states(result), backend.killed) == ("stopped", ["stopped"], {})
    assert read_stop(str(tmp_path), "run-1")["run"] == "run-1"


def test_attempt_that_stopped_before_the_engine_knew_stops_the_run(runs, tmp_path):
    def script(backend: Elsewhere, now: float) -> None:
        if now == 1:
            backend.fail(Cause.STOPPED)

    result, backend = runs([After(number=Plain(number=1))], script)
    assert (result.state, states(result), backend.begun) == ("stopped", ["stopped", "stopped"], 1)


def test_last_attempt_that_stopped_before_the_engine_knew_stops_the_run(runs):
    def script(backend: Elsewhere, now: float) -> None:
        if now == 1:
            backend.fail(Cause.STOPPED)

    result, _ = runs([Plain(number=1)], script)
    assert (result.state, states(result)) == ("stopped", ["stopped"])


@pytest.mark.parametrize(("cause", "state"), [(Cause.LOST, "stopped"), (Cause.EXCEPTION, "failed")])
def test_loss_while_stopping_is_not_tried_again_and_a_fault_stays_one(runs, tmp_path, cause, state):
    def script(backend: Elsewhere, now: float) -> None:
        if now == 1:
            ask_to_stop(str(tmp_path), "run-1", user="ada")
        if now == 5:
            backend.fail(cause)

    result, backend = runs([Plain(number=1), After(number=Plain(number=1))], script)
    assert states(result)[0] == state
    assert backend.begun == 1


def test_request_before_the_first_step_starts_no_backend(tmp_path):
    class Forbidden(InlineBackend):
        def start(self, code_folders, run) -> None:
            raise AssertionError("nothing has to run")

    ask_to_stop(str(tmp_path), "run-1", user="ada")
    planned = api.plan([Plain(number=1)], store=tmp_path)
    result = api.run_plan(planned, store=tmp_path, run="run-1", backend=Forbidden())
    assert (result.state, states(result)) == ("stopped", ["stopped"])


def test_request_after_the_last_step_leaves_the_run_done(runs, tmp_path):
    def script(backend: Elsewhere, now: float) -> None:
        ask_to_stop(str(tmp_path), "run-1", user="ada")
        backend.finish("plain")

    result, _ = runs([Plain(number=1)], script)
    assert (result.state, states(result)) == ("done", ["done"])


def test_stopped_run_goes_on_where_it_was(runs, tmp_path):
    def script(backend: Elsewhere, now: float) -> None:
        if now == 1:
            ask_to_stop(str(tmp_path), "run-1", user="ada")
        if now == 5:
            backend.finish("plain")

    steps = [After(number=Plain(number=1))]
    runs(steps, script)
    again = api.run_plan(api.plan(steps, store=tmp_path), store=tmp_path, backend="inline")
    assert states(again) == ["cached", "done"]


def test_run_that_is_stopped_while_its_backend_starts_begins_nothing(tmp_path):
    interrupted = threading.Event()
    planned = api.plan([Plain(number=1)], store=tmp_path)
    backend = SlowToStart(interrupted)
    result = api.run_plan(planned, store=tmp_path, backend=backend, interrupted=interrupted)
    assert (result.state, result.steps[0].state, result.steps[0].attempts) == ("stopped", "stopped", 0)
    assert not left(tmp_path)
