"""Order of data: exactly once per epoch, whatever the world size, and hashes that can be added."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin.train.order import audit_hash, permuted, samples, share


@settings(max_examples=60, deadline=None)
@given(size=st.integers(1, 3000), seed=st.integers(0, 2**40), epoch=st.integers(1, 50))
def test_permuted_numbers_of_any_range_are_a_permutation(size: int, seed: int, epoch: int) -> None:
    images = permuted(np.arange(size), size=size, seed=seed, epoch=epoch)
    assert np.array_equal(np.sort(images), np.arange(size))


def test_permuted_epochs_and_seeds_differ_and_look_shuffled() -> None:
    orders = [permuted(np.arange(4096), size=4096, seed=seed, epoch=epoch) for seed in (0, 1) for epoch in (1, 2)]
    for one in range(4):
        for other in range(one):
            assert (orders[one] == orders[other]).sum() < 20
        assert abs(np.corrcoef(orders[one], np.arange(4096))[0, 1]) < 0.06
        assert (np.diff(orders[one]) == 1).sum() < 10


def test_samples_of_the_first_epoch_keep_the_stored_order() -> None:
    assert samples(3, 8, num_sequences=10, seed=1).tolist() == [3, 4, 5, 6, 7]


def test_samples_across_an_epoch_edge_drop_nothing() -> None:
    numbers = samples(0, 35, num_sequences=7, seed=4)
    assert all(sorted(epoch.tolist()) == list(range(7)) for epoch in numbers.reshape(5, 7))


@settings(max_examples=60, deadline=None)
@given(
    num_sequences=st.integers(1, 40),
    batch=st.integers(1, 17),
    steps=st.integers(1, 12),
    worlds=st.lists(st.integers(1, 17), min_size=1, max_size=4),
)
def test_samples_over_changing_world_sizes_are_consumed_exactly_once(
    num_sequences: int, batch: int, steps: int, worlds: list[int]
) -> None:
    consumed: list[int] = []
    for step in range(steps):
        world_size = worlds[step % len(worlds)]
        numbers = samples(step * batch, (step + 1) * batch, num_sequences=num_sequences, seed=9)
        parts = [numbers[share(batch, rank=rank, world_size=world_size)] for rank in range(world_size)]
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
        total = sum(audit_hash(step, part) for part in parts)
        assert (total - audit_hash(step, numbers)) % 2**64 == 0
        consumed += np.concatenate(parts).tolist()
    assert consumed == samples(0, steps * batch, num_sequences=num_sequences, seed=9).tolist()


@pytest.mark.parametrize("change", [(1, [4, 5, 7]), (0, [4, 5, 8]), (0, [4, 5])])
def test_audit_hash_of_other_samples_or_another_step_differs(change: tuple[int, list[int]]) -> None:
    step, numbers = change
    assert audit_hash(0, np.array([4, 5, 7])) != audit_hash(step, np.array(numbers))
