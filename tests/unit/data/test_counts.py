"""Sums of the counts of shards."""

from copy import deepcopy
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from marin.data import counts

NAMES = st.sampled_from("abc")
RECORDS = st.dictionaries(
    st.sampled_from("nm"), st.dictionaries(NAMES, st.integers(-9, 9) | st.text(max_size=2), max_size=3), max_size=2
)


@settings(max_examples=25)
@given(st.lists(RECORDS, max_size=4))
def test_add_sums_each_number_by_its_place_and_leaves_the_records_alone(records: list[dict[str, Any]]) -> None:
    given_records = deepcopy(records)
    sums = counts.add(records)
    assert records == given_records
    assert list(sums) == sorted({name for record in records for name in record})
    for name, inner in sums.items():
        places = [record[name] for record in records if name in record]
        numbers = {key for place in places for key, value in place.items() if isinstance(value, int)}
        assert list(inner) == sorted(numbers)
        for key in numbers:
            assert inner[key] == sum(value for place in places if isinstance(value := place.get(key), int))


def test_add_of_a_source_a_shard_takes_a_pass() -> None:
    """A copy of the sums for each record would take minutes here."""
    records = [{"documents_out": 1, "sources": {f"{number:06d}": {"tokens": number}}} for number in range(20_000)]
    sums = counts.add(records)
    assert sums["documents_out"] == len(sums["sources"]) == 20_000
    assert sums["sources"]["019999"] == {"tokens": 19_999}
