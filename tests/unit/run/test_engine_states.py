"""The engine's state machine over a scripted backend: losses, budgets, commits that outlive their worker."""

import threading
from collections.abc import Sequence

import pytest

from marin.base.errors import StepError, StoreError
from marin.graph.artifact import Value
from marin.graph.context import Context
from marin.graph.step import Step
from marin.run import api
from marin.run.attempt import execute
from marin.run.backend import Ended
from marin.run.backends.inline import InlineBackend, InlineWorkers
from marin.run.order import Order
from marin.run.retry import Cause
from marin.store import Heartbeat, Lease, Leases, Store
from marin.testing import FaultyStorage, Rule


class Number(Step[Value[int]]):
    number: int

    def run(self, ctx: Context) -> Value[int]:
        return Value.write(ctx.output, self.number)


class LossyBackend(InlineBackend):
    """Stands for a cluster that loses the first workers: before they begin, or right after they have committed."""

    def __init__(self, losses: int, *, after_commit: bool = False) -> None:
        super().__init__()
        self.left = losses
        self.after_commit = after_commit
        self.orders: list[Order] = []

    def wait(self, timeout: float) -> list[Ended]:
        order, step = self._orders.popleft()
        self.orders.append(order)
        if self.left == 0:
            return [Ended(order.identity.attempt, report=execute(order, lambda: step, InlineWorkers()))]
        self.left -= 1
        if self.after_commit:
            execute(order, lambda: step, InlineWorkers())
        return [Ended(order.identity.attempt, cause=Cause.LOST, message="the worker was killed")]


class Double(Step[Value[int]]):
    number: Step[Value[int]]

    def run(self, ctx: Context) -> Value[int]:
        return Value.write(ctx.output, 2 * ctx.load(self.number).value)


class ForbiddenBackend(InlineBackend):
    def start(self, code_folders: Sequence[str], run: str) -> None:
        raise AssertionError("nothing has to run")


def _run(step, store, backend):
    return api.run_plan(api.plan([step], store=store), store=store, backend=backend)


def test_engine_lost_worker_is_replaced_under_the_same_lease(tmp_path):
    backend = LossyBackend(losses=1)
    result = _run(Number(number=1), tmp_path, backend)
    assert (result.state, result.steps[0].attempts) == ("done", 2)
    assert [order.epoch for order in backend.orders] == [1, 1]
    assert len({order.identity.attempt for order in backend.orders}) == 2


def test_engine_budget_spent_fails_naming_the_attempts(tmp_path):
    result = _run(Number(number=1).on(retries=1), tmp_path, LossyBackend(losses=9))
    step = result.steps[0]
    assert (step.state, step.attempts) == ("failed", 2)
    assert step.error["message"] == "the worker was killed (attempt 2 of 2)"
    assert _run(Number(number=1), tmp_path, InlineBackend()).state == "done"


def test_engine_worker_lost_after_its_commit_is_a_success(tmp_path):
    result = _run(Number(number=1), tmp_path, LossyBackend(losses=1, after_commit=True))
    assert (result.state, result.steps[0].attempts) == ("done", 1)


def test_engine_all_cached_never_starts_the_backend(tmp_path):
    _run(Number(number=1), tmp_path, InlineBackend())
    assert _run(Number(number=1), tmp_path, ForbiddenBackend()).steps[0].state == "cached"


def test_engine_lease_of_a_run_that_ended_is_free(tmp_path):
    with pytest.raises(AssertionError):
        _run(Number(number=1), tmp_path, ForbiddenBackend())
    assert _run(Number(number=1), tmp_path, InlineBackend()).state == "done"


def test_engine_user_exception_is_not_retried(tmp_path):
    class Bad(Number):
        def run(self, ctx: Context) -> Value[int]:
            raise ValueError("bad")

    with pytest.raises(StepError, match="ValueError: bad"):
        api.run(Bad(number=1).on(retries=5), store=tmp_path, backend="inline")


@pytest.fixture
def busy(tmp_path):
    """A store in which another live run makes `Number(number=1)`."""
    store = Store.open(str(tmp_path), write=True)
    heartbeat = Heartbeat(store, "20260101-000000-other")
    heartbeat.start()
    leases = Leases(store, "20260101-000000-other", user="ada")
    fingerprint = api.plan([Number(number=1)], store=tmp_path).steps[0].fingerprint
    lease = leases.acquire("number", fingerprint)
    assert isinstance(lease, Lease)
    yield tmp_path, leases, lease
    heartbeat.stop()


def _run_beside(busy, on_busy):
    steps = [Double(number=Number(number=1)), Double(number=Number(number=2)).named("other")]
    result = api.run_plan(api.plan(steps, store=busy[0]), store=busy[0], backend="inline", on_busy=on_busy)
    return result, {step.name: step.state for step in result.steps}


def test_engine_busy_step_is_left_to_the_other_run_and_the_rest_goes_on(busy):
    result, states = _run_beside(busy, "skip")
    assert result.state == "done"  # it did what it was asked to
    with pytest.raises(StepError, match="step number was not made: left to another run"):
        api.raise_unless_done(result)
    assert states == {"number": "blocked", "double": "blocked", "number-2": "done", "other": "done"}
    assert "run 20260101-000000-other of ada@" in result.step("number").error["message"]
    assert result.step("double").error["message"] == "needs number"


def test_engine_busy_step_fails_when_asked(busy):
    result, states = _run_beside(busy, "fail")
    assert states == {"number": "failed", "double": "blocked", "number-2": "done", "other": "done"}
    assert result.step("number").error["message"].startswith("busy: run 20260101-000000-other")
    with pytest.raises(StepError, match="busy"):
        api.raise_unless_done(result)


def test_engine_busy_step_is_waited_for(busy):
    _, leases, lease = busy
    timer = threading.Timer(0.5, leases.release, [lease])
    timer.start()
    assert _run_beside(busy, "wait")[0].state == "done"
    timer.join()


class WideBackend(InlineBackend):
    """Stands for a cluster with room for several attempts."""

    width = 4


class Together:
    """A storage's latency: `sleep` ends once so many calls wait at the same moment, but for the first ones."""

    def __init__(self, calls: int, *, after: int) -> None:
        self._barrier = threading.Barrier(calls)
        self._left = after
        self.met = False

    def sleep(self, seconds: float) -> None:
        self._left -= 1
        if self._left >= 0 or self.met:
            return
        try:
            self._barrier.wait(timeout=20)
            self.met = True
        except threading.BrokenBarrierError:
            pass


@pytest.mark.parametrize(
    ("path", "alone"),
    [("*/number/*/leases/1.json", 1), ("*/leases/1.released.json", 0), ("*/double/*/leases/1.json", 0)],
)
def test_engine_asks_a_late_store_about_many_steps_at_once(path, alone):
    together = Together(3, after=alone)  # the first lease is asked for alone: the backend is opened only then
    storage = FaultyStorage.memory("wide", sleep=together.sleep)
    url = storage.url("store")
    Store.open(url, write=True)
    plan = api.plan([Number(number=0), *[Double(number=Number(number=n)) for n in range(1, 4)]], store=url)
    storage.rules = [Rule("slow", operation="create", path=path)]
    assert api.run_plan(plan, store=url, backend=WideBackend()).state == "done"
    assert together.met
    leases = [name for name in storage.objects.below("store/artifacts") if "/leases/" in name]
    assert len(leases) == 2 * 7
    assert sum(name.endswith(".released.json") for name in leases) == 7


class Stopped(WideBackend):
    """Is interrupted while leases are asked for."""

    def submit(self, order: Order, step: Step) -> None:
        if step.number == 2:
            raise KeyboardInterrupt
        super().submit(order, step)


def test_engine_interrupted_gives_back_leases_that_it_was_only_asking_for():
    storage = FaultyStorage.memory("wide")
    url = storage.url("store")
    result = api.run_plan(api.plan([Number(number=n) for n in range(6)], store=url), store=url, backend=Stopped())
    assert result.state == "stopped"
    leases = [name for name in storage.objects.below("store/artifacts") if "/leases/" in name]
    taken = {name.replace(".released", "") for name in leases}
    assert len(leases) == 2 * len(taken)
    assert api.run_plan(api.plan([Number(number=2)], store=url), store=url, backend="inline").state == "done"


def test_engine_late_store_that_stops_answering_ends_the_run_with_its_error():
    storage = FaultyStorage.memory("wide")
    url = storage.url("store")
    Store.open(url, write=True)
    plan = api.plan([Number(number=n) for n in range(6)], store=url)
    storage.rules = [Rule("denied", operation="create", path="*/leases/*", nth=4)]
    with pytest.raises(StoreError, match="storage refused"):
        api.run_plan(plan, store=url, backend=WideBackend())
    storage.rules = ()
    assert api.run_plan(api.plan([Number(number=n) for n in range(6)], store=url), store=url, backend="inline")
