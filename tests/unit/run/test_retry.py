"""Retry decisions: separate budgets per cause."""

import pytest

from marin.run.retry import Budget, Cause


def _tries(budget: Budget, cause: Cause, limit: int = 20) -> int:
    tries = 0
    while tries < limit and budget.allows(cause):
        budget, tries = budget.after(cause), tries + 1
    return tries


@pytest.mark.parametrize("cause", [Cause.EXCEPTION, Cause.TIMEOUT, Cause.STOPPED])
def test_budget_user_failure_is_never_retried(cause):
    assert _tries(Budget(3), cause) == 0


@pytest.mark.parametrize("cause", [Cause.LOST, Cause.OUT_OF_MEMORY, Cause.HUNG])
def test_budget_loss_is_retried_as_often_as_asked(cause):
    assert _tries(Budget(3), cause) == 3
    assert _tries(Budget(0), cause) == 0


def test_budget_preemption_costs_nothing():
    assert _tries(Budget(0), Cause.PREEMPTED, limit=20) == 20


def test_budget_progress_renews_it():
    spent = Budget(1).after(Cause.LOST)
    assert not spent.allows(Cause.LOST)
    assert spent.renewed().allows(Cause.LOST)


def test_budget_delay_starts_at_zero_and_is_bounded():
    delays = [Budget(99, spent=spent).delay for spent in range(1, 12)]
    assert delays[:4] == [0.0, 1.0, 2.0, 4.0]
    assert delays == sorted(delays)
    assert delays[-1] == 30.0
