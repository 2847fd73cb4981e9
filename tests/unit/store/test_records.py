"""Records: what comes back is what was written, or nothing."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marin import fs
from marin.base.json import Json
from marin.graph.files import Contents, FileRef, Shard
from marin.store import output_digest, shard_digest
from marin.store.records import decode, encode, problem_of

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(anything)
def test_record_round_trip_gives_it_back(value: Json):
    record = {"state": "done", "value": value}
    assert decode(encode("run", record), "run", where="x") == record


@given(st.binary(max_size=200))
def test_record_of_any_bytes_is_a_miss(data: bytes):
    assert decode(data, "run", where="x") is None


@given(st.integers(min_value=0))
def test_record_cut_anywhere_is_a_miss(length: int):
    data = encode("run", {"state": "done"}).strip()
    assert decode(data[: length % len(data)], "run", where="x") is None


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_record_with_numbers_that_are_no_json_is_a_miss(value: float):
    data = json.dumps({"kind": "run", "schema": 1, "checksum": "0" * 32, "loss": value}).encode()
    assert decode(data, "run", where="x") is None


def test_record_nested_without_end_is_a_miss():
    assert decode(b"[" * 200_000, "run", where="x") is None


@pytest.mark.parametrize(
    ("kind", "record", "problem"),
    [
        ("lease", {"fingerprint": "f", "run": "r", "nonce": "n", "user": "u", "since": "s"}, "lacks `process`"),
        ("heartbeat", {"beat": "1", "process": {}}, "holds str as `beat`"),
        ("pin", {"name": None}, "lacks `name`"),
    ],
)
def test_record_that_its_model_does_not_allow_is_a_miss(kind: str, record: dict[str, Json], problem: str):
    data = encode(kind, record)
    assert decode(data, kind, where="x") is None
    assert problem_of(data, kind) == problem


def test_record_with_fields_of_a_later_marin_is_believed():
    assert decode(encode("run", {"state": "done", "mood": "good"}), "run", where="x") is not None


def test_record_keeps_file_names_that_are_no_text():
    name = b"caf\xe9.py".decode("utf-8", "surrogateescape")
    assert decode(encode("run", {"state": name}), "run", where="x") == {"state": name}
    assert shard_digest([FileRef(name, "x", 1, "d")], None)


def test_output_digest_knows_what_counts_and_nothing_else():
    reader, shards = fs.FileReader(), (Shard("0", "s1"),)
    first, second = FileRef("a", "u", 1, "d1"), FileRef("b", "v", 2, "d2")
    contents = Contents(reader, (first, second), shards, {"n": 1}, "old digest")
    digest = output_digest("Table", 1, contents)
    elsewhere = FileRef("a", "another url", 1, "d1")
    assert output_digest("Table", 1, Contents(reader, (second, elsewhere), shards, {"n": 1})) == digest
    different = [
        output_digest("Folder", 1, contents),
        output_digest("Table", 2, contents),
        output_digest("Table", 1, Contents(reader, (first,), shards, {"n": 1})),
        output_digest("Table", 1, Contents(reader, contents.files, (Shard("0", "s2"),), {"n": 1})),
        output_digest("Table", 1, Contents(reader, contents.files, shards, {"n": 2})),
        output_digest("Table", 1, Contents(reader, contents.files, shards, {"n": 1.0})),
    ]
    assert len({digest, *different}) == 1 + len(different)
