"""Hashes that files on disk depend on: pinned for ever, and checked against their source."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from marin.data.hashes import bundle, document_id, mix64, order_keys, text_hash
from marin.graph.files import FileRef


def test_mix64_is_splitmix64() -> None:
    # First outputs of splitmix64 seeded with 0 (Vigna's reference): the state grows by the golden gamma.
    gamma = np.uint64(0x9E3779B97F4A7C15)
    with np.errstate(over="ignore"):
        states = np.arange(1, 4, dtype=np.uint64) * gamma
    assert [f"{value:016x}" for value in mix64(states)] == ["e220a8397b1dcdaf", "6e789e6aa1b965f4", "06c45d188009454f"]


def test_hashes_of_a_known_document_never_change() -> None:
    identity = document_id("text é", "a.py:1")
    assert identity.hex() == "02872802724b2ddd35ee584b8e86beb7"
    assert text_hash("text é", 3) == 4268830532624279651
    keys = order_keys(np.frombuffer(identity, np.uint8).reshape(1, 16), seed=7)
    assert int(keys[0]) == 16388390312962056171


@given(left=st.tuples(st.text(), st.text()), right=st.tuples(st.text(), st.text()))
def test_document_id_border_of_text_and_name_counts(left: tuple[str, str], right: tuple[str, str]) -> None:
    assert (document_id(*left) == document_id(*right)) == (left == right)


def test_bundle_digest_is_of_contents_not_of_places() -> None:
    here, there = FileRef("a", "/here/a", 1, "d"), FileRef("a", "s3://there/a", 1, "d")
    assert bundle([here]).digest == bundle([there]).digest
    assert len({bundle([here]).digest, bundle([here], 1).digest, bundle([here, here]).digest}) == 3
