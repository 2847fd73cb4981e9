"""Paired comparisons: beside the textbook, and beside counting all draws by hand."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marin.view import paired
from marin.view.paired import Measured, differences, discordance


def measured(values: list[float]) -> Measured:
    return Measured(np.array(values, float), np.ones(len(values)))


@pytest.mark.parametrize(
    ("only_a", "only_b", "p"),
    [(0, 0, 1.0), (1, 1, 1.0), (0, 5, 0.0625), (5, 0, 0.0625), (6, 16, 0.05248), (59, 121, 4.4347e-06)],
)
def test_discordance_is_the_exact_two_sided_binomial_test(only_a: int, only_b: int, p: float) -> None:
    a = np.array([True] * only_a + [False] * only_b + [True, False] * 3)
    b = np.array([False] * only_a + [True] * only_b + [True, False] * 3)
    found = discordance(a, b)
    assert (found.only_a, found.only_b) == (only_a, only_b)
    assert found.p == pytest.approx(p, rel=1e-3)


@given(st.integers(0, 40), st.integers(0, 40))
def test_discordance_does_not_depend_on_which_comes_first(only_a: int, only_b: int) -> None:
    a = np.array([True] * only_a + [False] * only_b, dtype=bool)
    b = ~a
    assert discordance(a, b).p == discordance(b, a).p
    assert 0 < discordance(a, b).p <= 1


def test_difference_of_few_items_has_the_interval_of_all_draws() -> None:
    a, b = [0.0, 1.0, 3.0, 2.0, 0.0], [1.0, 1.0, 2.0, 4.0, 3.0]
    means = [np.mean([b[i] - a[i] for i in drawn]) for drawn in itertools.product(range(5), repeat=5)]
    (found,) = differences([(measured(a), measured(b))])
    assert (found.a, found.b, found.difference) == (1.2, 2.2, pytest.approx(1.0))
    assert [found.low, found.high] == pytest.approx(np.percentile(means, [2.5, 97.5]), abs=0.21)


def test_difference_of_a_constant_shift_is_certain_whatever_the_items_are() -> None:
    noise = np.random.default_rng(0).normal(size=200)
    (found,) = differences([(measured(list(noise)), measured(list(noise + 0.5)))])
    assert [found.difference, found.low, found.high] == pytest.approx([0.5] * 3)


def test_difference_of_ratios_weighs_items_by_their_size() -> None:
    a = Measured(np.array([2.0, 9.0]), np.array([1.0, 9.0]))
    b = Measured(np.array([1.0, 9.0]), np.array([1.0, 9.0]))
    (found,) = differences([(a, b)])
    assert (found.a, found.b) == (1.1, 1.0)


def test_differences_are_the_same_however_many_are_drawn_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = np.random.default_rng(1).normal(size=(2, 60))
    pairs = [(measured(list(noise[0])), measured(list(noise[1])))]
    whole = differences(pairs)
    monkeypatch.setattr(paired, "_DRAWN_AT_ONCE", 420)
    assert differences(pairs) == whole
