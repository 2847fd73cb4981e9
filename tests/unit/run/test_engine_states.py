"""The engine's state machine over a scripted backend: losses, budgets, commits that outlive their worker."""

from collections.abc import Sequence

import pytest

from marin.base.errors import StepError
from marin.graph.artifact import Value
from marin.graph.context import Context
from marin.graph.step import Step
from marin.run import api
from marin.run.attempt import execute
from marin.run.backend import Ended
from marin.run.backends.inline import InlineBackend, InlineWorkers
from marin.run.order import Order
from marin.run.retry import Cause


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
