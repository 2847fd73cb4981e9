"""How many shards go into a group, given how long they take."""

import pytest

from marin.run.shardpace import GROUP_SECONDS, LEAST_SECONDS, MAX_GROUP, Pace


def pace(*seconds: float) -> Pace:
    known = Pace()
    known.add(seconds)
    return known


def test_group_of_unknown_shards_is_one():
    assert Pace().group(100_000, 8) == 1


@pytest.mark.parametrize(
    ("seconds", "left", "width", "size"),
    [
        (60.0, 1000, 4, 1),  # each longer than a group is meant to take
        (0.1, 1000, 4, int(GROUP_SECONDS / 0.1)),
        (0.0001, 100_000, 4, MAX_GROUP),
        (0.0, 100_000, 4, MAX_GROUP),  # too short for the clock
        (0.1, 80, 4, 5),  # smaller towards the end, for the balance
        (0.001, 80, 4, int(LEAST_SECONDS / 0.001)),  # but not so small that groups cost more than shards
        (10.0, 1, 4, 1),
    ],
)
def test_group_takes_a_few_seconds_and_shrinks_towards_the_end(seconds, left, width, size):
    assert pace(seconds, seconds).group(left, width) == size


def test_group_follows_the_latest_shards():
    known = pace(*[1.0] * 10)
    known.add([0.01] * 2000)
    assert known.group(100_000, 1) == int(GROUP_SECONDS / 0.01)


def test_median_is_what_half_of_the_shards_take():
    assert Pace().median == 0
    assert pace(1, 1, 1, 100).median == 1
