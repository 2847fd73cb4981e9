"""Parquet files as documents: rows, names, what is left as meta, bad input by name, cuts between row groups."""

import json
from collections.abc import Callable
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

import marin
from marin.base.errors import DataError, InputError, MarinError
from marin.data.documents import read_documents
from marin.data.hashes import bundle
from marin.data.parquet_files import RowGroup
from marin.data.parquet_shards import cut_runs, parquet_shard, survey_parquet_shard
from marin.data.survey import BLOCKS
from marin.graph.files import FileRef, Shard

MakeFile = Callable[[str, bytes], FileRef]
RunShards = Callable[..., list[Shard]]


def packed(table: pa.Table, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    parquet.write_table(table, sink, **options)
    return sink.getvalue().to_pybytes()


def rows_of(number: int, seed: int = 0) -> pa.Table:
    texts = [f"{seed} {row} " + "word " * (row % 50) for row in range(number)]
    return pa.table({"text": texts, "n": list(range(number)), "lang": ["en"] * number})


def ingest(run_shards: RunShards, *files: FileRef, **options: object) -> Shard:
    (shard,) = run_shards(parquet_shard, [bundle(files)], **{"text": "text", "on_error": "skip"} | options)
    return shard


def found(shards: list[Shard] | tuple[Shard, ...]) -> list[tuple[str, str, str]]:
    return [(d.id, d.text, d.meta) for shard in shards for d in read_documents(shard)]


def run_parquet(tmp_path: Path, store: str = "store", **options: object) -> marin.Documents:
    step = marin.Parquet(url=str(tmp_path / "in" / "*"), text="text", **options)
    return marin.run(step, store=tmp_path / store, backend="inline")


def write(tmp_path: Path, **tables: bytes) -> None:
    (tmp_path / "in").mkdir(exist_ok=True)
    for name, data in tables.items():
        (tmp_path / "in" / f"{name}.parquet").write_bytes(data)


def test_parquet_rows_are_documents_named_by_path_and_row(tmp_path: Path) -> None:
    write(tmp_path, a=packed(pa.table({"text": ["one", "", "three"], "n": [1, 2, 3]})))
    documents = run_parquet(tmp_path)
    assert found(documents.shards) == [("a.parquet:1", "one", '{"n":1}'), ("a.parquet:3", "three", '{"n":3}')]
    assert documents.meta["dropped"] == {"empty": 1}
    assert (documents.meta["documents_in"], documents.meta["files"]) == (3, 1)


def test_parquet_nested_text_and_id_leave_the_rest_as_meta(make_file: MakeFile, run_shards: RunShards) -> None:
    rows = [{"doc": {"text": "a", "id": 7, "tag": "x"}}, {"doc": None}, {"doc": {"text": None, "id": 8, "tag": "y"}}]
    file = make_file("a.parquet", packed(pa.table({"doc": [row["doc"] for row in rows], "k": [1, 2, 3]})))
    shard = ingest(run_shards, file, text="doc.text", id="doc.id")
    assert found([shard]) == [("7", "a", '{"doc":{"tag":"x"},"k":1}')]
    assert shard.value["dropped"] == {"missing_text": 2}
    chosen = ingest(run_shards, file, text="doc.text", meta=["k"])
    assert found([chosen]) == [("a.parquet:1", "a", '{"k":1}')]
    assert found([ingest(run_shards, file, text="doc.text", meta=[])])[0][2] == "{}"


def test_parquet_column_that_is_called_like_a_nested_field_stays(make_file: MakeFile, run_shards: RunShards) -> None:
    file = make_file("a.parquet", packed(pa.table({"a": [{"b": "text"}], "a.b": ["other"]})))
    assert found([ingest(run_shards, file, text="a.b")]) == [("a.parquet:1", "text", '{"a":{},"a.b":"other"}')]


def test_parquet_meta_of_every_kind_is_json_that_does_not_depend_on_the_machine(
    make_file: MakeFile, run_shards: RunShards
) -> None:
    moment = datetime(2026, 3, 1, 12, 30, 15, 123456)
    table = pa.table(
        {
            "text": pa.array(["a"], pa.string_view()),
            "ns": pa.array([1_700_000_000_123_456_789], pa.timestamp("ns")),
            "zoned": pa.array([moment.replace(tzinfo=UTC)], pa.timestamp("us", "Asia/Tokyo")),
            "day": pa.array([date(2026, 3, 1)]),
            "at": pa.array([time(1, 2, 3)]),
            "price": pa.array([Decimal("1.50")]),
            "half": pa.array([0.5], pa.float16()),
            "tags": pa.array([["x", None]]),
            "inner": pa.array([{"when": moment, "list": [{"n": 1}]}]),
            "kind": pa.array(["k"]).dictionary_encode(),
            "pairs": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())),
            "nan": pa.array([float("nan")]),
        }
    )
    shard = ingest(run_shards, make_file("a.parquet", packed(table)), on_error="fail")
    (document,) = read_documents(shard)
    assert document.text == "a"
    assert json.loads(document.meta) == {
        "ns": "2023-11-14T22:13:20.123456",
        "zoned": "2026-03-01T12:30:15.123456+00:00",
        "day": "2026-03-01",
        "at": "01:02:03",
        "price": "1.50",
        "half": 0.5,
        "tags": ["x", None],
        "inner": {"when": "2026-03-01T12:30:15.123456", "list": [{"n": 1}]},
        "kind": "k",
        "pairs": [["a", 1]],
        "nan": None,
    }


BAD_TEXT = pa.table({"text": pa.array([b"good", b"\xff\xfe", None, b"x" * 100], pa.binary())})


@pytest.mark.parametrize(
    ("table", "options", "dropped", "said"),
    [
        (
            BAD_TEXT,
            {},
            {"invalid_utf8": 1, "missing_text": 1},
            r"`a.parquet`, row 2: byte 0xff at offset 0 of the text",
        ),
        (BAD_TEXT.slice(2), {}, {"missing_text": 1}, r"row 1: `text` is null \(missing_text\)"),
        (BAD_TEXT.slice(3), {"max_document_bytes": 50}, {"too_long": 1}, "longer than the 50 bytes"),
        (pa.table({"Text": ["a", "b"]}), {}, {"missing_text": 2}, r"no column `text`; it has `Text`"),
        (pa.table({"text": [1, 2, 3]}), {}, {"text_not_a_string": 3}, "column `text` holds int64"),
        (pa.table({"text": ["a"]}), {"id": "id"}, {"missing_id": 1}, "no column `id`"),
        (pa.table({"text": ["a"], "id": [1.5]}), {"id": "id"}, {"missing_id": 1}, "holds double, not strings"),
        (pa.table({"text": ["a", "b"], "id": [None, 3]}), {"id": "id"}, {"missing_id": 1}, "row 1: `id` is null"),
        (pa.table([["a"], ["b"], ["c"]], ["text", "n", "n"]), {}, {"duplicate_column": 1}, "2 columns are called `n`"),
        (pa.table({"text": ["a"]}), {"meta": ["lang"]}, {"missing_column": 1}, "no column `lang`"),
        (pa.table({"text": ["a"], "image": [b"x"]}), {}, {"meta_not_json": 1}, "column `image` holds binary"),
        (
            pa.table({"text": ["a", "b"], "t": pa.array([0, 10**18], pa.timestamp("us"))}),
            {},
            {"meta_not_json": 1},
            "a value that JSON cannot hold",
        ),
    ],
)
def test_parquet_bad_rows_are_counted_by_reason_and_named_when_they_fail(
    make_file: MakeFile, run_shards: RunShards, table: pa.Table, options: dict[str, Any], dropped: Any, said: str
) -> None:
    file = make_file("a.parquet", packed(table))
    shard = ingest(run_shards, file, **options)
    assert shard.value["dropped"] == dropped
    assert shard.value["documents_in"] == table.num_rows
    with pytest.raises(DataError, match=said):
        ingest(run_shards, file, **{"on_error": "fail"} | options)


def test_parquet_quarantine_keeps_row_reason_and_number(make_file: MakeFile, run_shards: RunShards) -> None:
    files = make_file("a.parquet", packed(BAD_TEXT)), make_file("b.parquet", packed(pa.table({"body": ["x", "y"]})))
    shard = ingest(run_shards, *files, on_error="quarantine")
    with open(shard.file("quarantine.jsonl").url) as lines:
        bad = list(map(json.loads, lines))
    assert [(b["path"], b["row"], b["reason"], b.get("documents", 1)) for b in bad] == [
        ("a.parquet", 2, "invalid_utf8", 1),
        ("a.parquet", 3, "missing_text", 1),
        ("b.parquet", 1, "missing_text", 2),
    ]
    assert bad[0]["data"] == "\\xff\\xfe"
    assert shard.value["documents_in"] == 6


GOOD = packed(rows_of(100))


@pytest.mark.parametrize(
    ("data", "reason", "said"),
    [
        (b"", "not_parquet", "it is empty"),
        (b'{"text": "a"}\n', "not_parquet", "it is not Parquet: it begins with 7b 22 74 65"),
        (GOOD[:-10], "parquet_damaged", "it was cut off"),
        (GOOD[:-30] + b"\xff" * 22 + GOOD[-8:], "parquet_damaged", "its footer cannot be read"),
    ],
)
def test_parquet_file_that_cannot_be_opened_is_named(
    tmp_path: Path, make_file: MakeFile, run_shards: RunShards, data: bytes, reason: str, said: str
) -> None:
    file, good = make_file("a.parquet", data), make_file("b.parquet", GOOD)
    shard = ingest(run_shards, file, good)
    assert (shard.value["dropped"], shard.value["documents_out"]) == ({reason: 1}, 100)
    with pytest.raises(DataError, match=rf"`a.parquet`: .*{said}"):
        ingest(run_shards, file, on_error="fail")
    write(tmp_path, a=data, b=GOOD)  # and when it is large enough to be cut
    cut = run_parquet(tmp_path, shard_bytes=4, on_error="skip", max_errors=1)
    assert (cut.meta["dropped"], cut.meta["documents_out"], cut.meta["files"]) == ({reason: 1}, 100, 2)
    with pytest.raises(MarinError, match=r"1 of 101 documents are bad"):
        run_parquet(tmp_path, shard_bytes=4, on_error="skip", max_errors=0)


def test_parquet_damaged_row_group_costs_its_own_rows_only(make_file: MakeFile, run_shards: RunShards) -> None:
    data = bytearray(packed(rows_of(300), row_group_size=100, write_page_checksum=True, compression="none"))
    middle = bytes(data).index(b"0 151 word")
    data[middle + 3] ^= 1
    shard = ingest(run_shards, make_file("a.parquet", bytes(data)))
    assert shard.value["dropped"] == {"parquet_damaged": 100}
    assert [int(text.split()[1]) for _, text, _ in found([shard])] == [*range(100), *range(200, 300)]
    with pytest.raises(DataError, match=r"row 101: row group 1 cannot be read from here on.*parquet_damaged"):
        ingest(run_shards, make_file("a.parquet", bytes(data)), on_error="fail")


@pytest.mark.parametrize("pack", [{}, {"compression": "zstd", "data_page_size": 1000}, {"use_dictionary": False}])
def test_parquet_cut_between_row_groups_gives_the_documents_of_the_whole(tmp_path: Path, pack: dict[str, Any]) -> None:
    write(tmp_path, a=packed(rows_of(4000), row_group_size=300, **pack), b=packed(rows_of(5, 1)))
    whole = run_parquet(tmp_path, "whole")
    cut = run_parquet(tmp_path, "cut", shard_bytes=5_000)
    assert found(cut.shards) == found(whole.shards)
    assert len(cut.shards) > 3 > len(whole.shards)
    assert cut.meta == whole.meta


def test_parquet_with_a_file_added_redoes_nothing_else(tmp_path: Path) -> None:
    write(tmp_path, **{f"f{n}": packed(rows_of(2000 if n % 2 else 20, n), row_group_size=300) for n in range(6)})
    before = {shard.digest for shard in run_parquet(tmp_path, shard_bytes=4000).shards}
    write(tmp_path, f2a=packed(rows_of(2000, 9), row_group_size=300))
    after = {shard.digest for shard in run_parquet(tmp_path, shard_bytes=4000).shards}
    assert len(before) > 10
    assert before < after


def test_parquet_file_that_changed_since_the_plan_never_gives_a_shard(
    make_file: MakeFile, run_shards: RunShards
) -> None:
    file = make_file("a.parquet", packed(rows_of(1000)))
    (surveyed,) = run_shards(survey_parquet_shard, [bundle([file])])
    piece = bundle([file, surveyed.file(BLOCKS)], {"start": 0, "stop": 1})
    make_file("a.parquet", packed(rows_of(1000, seed=1)))
    for fn, shard in ((parquet_shard, piece), (parquet_shard, bundle([file])), (survey_parquet_shard, bundle([file]))):
        config = {"text": "text", "on_error": "skip"} if fn is parquet_shard else {}
        with pytest.raises(InputError, match="input changed during the run"):
            run_shards(fn, [shard], **config)


@given(st.lists(st.integers(0, 50)), st.integers(1, 100))
def test_cut_runs_hold_each_row_group_once_in_order(sizes: list[int], shard_bytes: int) -> None:
    runs = cut_runs([RowGroup(1, size) for size in sizes], shard_bytes=shard_bytes)
    assert [number for run in runs for number in run] == list(range(len(sizes)))
    assert all(sum(sizes[n] for n in run) >= shard_bytes for run in runs[:-1])
    assert len(runs) >= 1
