"""Bad files, each a named error or a counted outcome."""

import bz2
import gzip
import itertools
import json
import lzma
import os
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zstandard

import marin
from marin import Records
from marin.base.errors import ConfigurationError, DataError, InputError, MarinError
from marin.data.documents import read_documents
from marin.data.hashes import bundle
from marin.data.ingest import ingest_shard, total
from marin.data.lines import LineBlock, LineReader, LongLine
from marin.data.sources import read_chunks
from marin.graph.files import FileRef, Shard

MakeFile = Callable[[str, bytes], FileRef]
RunShards = Callable[..., list[Shard]]

LINE = b'{"text": "good"}\n'
PACK = {"gz": gzip.compress, "zst": zstandard.compress, "xz": lzma.compress, "bz2": bz2.compress}


def ingest(run_shards: RunShards, *files: FileRef, **options: object) -> Shard:
    (shard,) = run_shards(ingest_shard, [bundle(files)], **{"text": "text", "on_error": "skip"} | options)
    return shard


def texts(shard: Shard) -> list[str]:
    return [document.text for document in read_documents(shard)]


@pytest.mark.parametrize("suffix", PACK)
def test_archive_of_two_members_is_whole_and_garbage_after_it_is_damage(
    make_file: MakeFile, run_shards: RunShards, suffix: str
) -> None:
    two = PACK[suffix](LINE * 2) + PACK[suffix](LINE * 3)
    good = ingest(run_shards, make_file(f"a.jsonl.{suffix}", two), on_error="fail")
    assert texts(good) == ["good"] * 5
    bad = ingest(run_shards, make_file(f"b.jsonl.{suffix}", two + b"garbage after the end"))
    assert (texts(bad), bad.value["dropped"]) == (["good"] * 5, {"archive_damaged": 1})


@pytest.mark.parametrize("suffix", PACK)
@pytest.mark.parametrize("cut", [1, 5, 9])
def test_archive_cut_anywhere_is_never_whole(make_file: MakeFile, run_shards: RunShards, suffix: str, cut: int) -> None:
    shard = ingest(run_shards, make_file(f"a.jsonl.{suffix}", PACK[suffix](LINE * 500)[:-cut]))
    assert shard.value["dropped"] == {"archive_damaged": 1}
    assert shard.value["documents_in"] == shard.value["documents_out"] + 1


@pytest.mark.parametrize("suffix", PACK)
def test_archive_with_a_flipped_byte_is_damaged(make_file: MakeFile, run_shards: RunShards, suffix: str) -> None:
    data = json.dumps({"text": os.urandom(3000).hex()}).encode()
    pack = PACK[suffix] if suffix != "zst" else zstandard.ZstdCompressor(write_checksum=True).compress
    packed = bytearray(pack(data))
    packed[len(packed) // 2] ^= 1
    shard = ingest(run_shards, make_file(f"a.jsonl.{suffix}", bytes(packed)))
    assert shard.value["dropped"] == {"archive_damaged": 1}


@pytest.mark.parametrize(
    ("path", "pack", "seen"),
    [
        ("a.jsonl", gzip.compress, "begins like gzip, and its name does not end in .gz"),
        ("a.jsonl", zstandard.compress, "begins like zstd"),
        ("a.jsonl.gz", zstandard.compress, "says gzip, and it begins like zstd"),
        ("a.jsonl.xz", gzip.compress, "says xz, and it begins like gzip"),
    ],
)
def test_wrong_suffix_is_named(
    make_file: MakeFile, run_shards: RunShards, path: str, pack: Callable[[bytes], bytes], seen: str
) -> None:
    with pytest.raises(DataError, match=rf"{seen}.*\(wrong_suffix\)"):
        ingest(run_shards, make_file(path, pack(LINE)), on_error="fail")


@pytest.mark.parametrize("suffix", ["gz", "zst", "bz2"])
@pytest.mark.parametrize("text", ["text", None])
def test_bomb_is_an_error_before_it_is_in_memory(
    make_file: MakeFile, run_shards: RunShards, suffix: str, text: str | None
) -> None:
    file = make_file(f"a.{suffix}", PACK[suffix](b" " * 150_000_000))
    with pytest.raises(DataError, match=r"expands to more than 250 times its \d+ bytes \(archive_bomb\)"):
        ingest(run_shards, file, text=text, on_error="fail")


@pytest.mark.parametrize("suffix", PACK)
def test_empty_file_is_no_document_and_no_error(make_file: MakeFile, run_shards: RunShards, suffix: str) -> None:
    files = make_file("a.jsonl", b""), make_file(f"b.jsonl.{suffix}", PACK[suffix](b"")), make_file("c.jsonl", LINE)
    shard = ingest(run_shards, *files, make_file(f"d.jsonl.{suffix}", b""), on_error="fail")
    assert (texts(shard), shard.value["documents_in"]) == (["good"], 1)


def test_long_line_is_passed_over_and_the_next_is_taken(make_file: MakeFile, run_shards: RunShards) -> None:
    data = LINE + b'{"text": "' + b"x" * 5_000_000 + b'"}\n' + LINE
    shard = ingest(run_shards, make_file("a.jsonl", data), max_document_bytes=1_000_000, on_error="quarantine")
    assert (texts(shard), shard.value["dropped"]) == (["good", "good"], {"too_long": 1})
    with open(shard.file("quarantine.jsonl").url) as lines:
        (bad,) = map(json.loads, lines)
    assert (bad["line"], bad["offset"], bad["reason"]) == (2, len(LINE), "too_long")
    whole = ingest(run_shards, make_file("a.txt", data), text=None, max_document_bytes=1_000_000)
    assert whole.value["dropped"] == {"too_long": 1}


@pytest.mark.parametrize("text", ["text", None])
def test_document_of_64_mb_is_taken(make_file: MakeFile, run_shards: RunShards, text: str | None) -> None:
    long = "ab\n" * 21_000_000
    data = json.dumps({"text": long}).encode() + b"\n" if text else long.encode()
    shard = ingest(run_shards, make_file("a", data), text=text, on_error="fail")
    assert texts(shard) == [long]


def test_id_field_names_the_document_and_a_bad_one_is_counted(make_file: MakeFile, run_shards: RunShards) -> None:
    rows = [
        {"text": "a", "m": {"id": "x"}},
        {"text": "b", "m": {"id": 7}},
        {"text": "c"},
        {"text": "d", "m": {"id": 1.5}},
    ]
    data = b"\n".join(json.dumps(row).encode() for row in rows)
    shard = ingest(run_shards, make_file("a.jsonl", data), id="m.id")
    assert [(d.id, d.text, d.meta) for d in read_documents(shard)] == [("x", "a", '{"m":{}}'), ("7", "b", '{"m":{}}')]
    assert shard.value["dropped"] == {"missing_id": 2}


def test_files_with_id_and_no_text_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="a field for the id"):
        marin.Files(url="x", id="id")


@pytest.mark.parametrize(
    ("options", "allowed"),
    [
        ({"max_errors": 1}, False),
        ({"max_errors": 2}, True),
        ({"max_error_fraction": 0.3}, False),
        ({"max_error_fraction": 0.5}, True),
        ({}, True),
    ],
)
def test_files_with_more_errors_than_allowed_fail_with_the_reasons(
    tmp_path: Path, options: dict[str, float], allowed: bool
) -> None:
    (tmp_path / "a.jsonl").write_bytes(LINE * 3 + b"[]\n{\n" + b'{"text": ""}\n')
    step = marin.Files(url=str(tmp_path / "a.jsonl"), text="text", on_error="skip", **options)
    if allowed:
        assert marin.run(step, store=tmp_path / "store", backend="inline").meta["documents_out"] == 3
    else:
        with pytest.raises(MarinError, match=r"2 of 6 documents are bad \(1 invalid_json, 1 not_an_object\)"):
            marin.run(step, store=tmp_path / "store", backend="inline")


@pytest.mark.parametrize("on_error", ["fail", "skip", "quarantine"])
def test_name_that_is_no_utf8_names_its_documents_escaped(tmp_path: Path, on_error: str) -> None:
    Path(os.fsdecode(bytes(tmp_path) + b"/caf\xe9.jsonl")).write_bytes(LINE + (b"" if on_error == "fail" else b"{"))
    step = marin.Files(url=f"{tmp_path}/*.jsonl", text="text", on_error=on_error)
    (shard,) = marin.run(step, store=tmp_path / "store", backend="inline").shards
    assert [document.source for document in read_documents(shard)] == [r"caf\xe9.jsonl"]
    assert shard.value["dropped"] == ({} if on_error == "fail" else {"invalid_json": 1})
    if on_error == "quarantine":
        (line,) = Path(shard.file("quarantine.jsonl").url).read_text().splitlines()
        assert json.loads(line)["path"] == r"caf\xe9.jsonl"


def test_total_of_empty_documents_counts_no_error() -> None:
    record = {"documents_in": 3, "documents_out": 1, "bytes": 1, "dropped": {"empty": 2}, "notes": {}}
    assert total([record], max_errors=0)["documents_out"] == 1


def test_files_of_a_folder_with_a_link_to_itself_reads_each_file_once(tmp_path: Path) -> None:
    (tmp_path / "in" / "below").mkdir(parents=True)
    (tmp_path / "in" / "below" / "a.txt").write_text("a")
    (tmp_path / "in" / "below" / "loop").symlink_to(tmp_path / "in")
    documents = marin.run(marin.Files(url=str(tmp_path / "in" / "**")), store=tmp_path / "store", backend="inline")
    assert [d.id for shard in documents.shards for d in read_documents(shard)] == ["below/a.txt"]


def test_files_of_a_link_that_leads_to_itself_are_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "loop.txt").symlink_to(tmp_path / "in" / "loop.txt")
    with pytest.raises(MarinError, match=r"loop\.txt"):
        marin.run(marin.Files(url=str(tmp_path / "in" / "*.txt")), store=tmp_path / "store", backend="inline")


def test_files_of_a_folder_takes_the_files_below_it(tmp_path: Path) -> None:
    (tmp_path / "in" / "x.jsonl").mkdir(parents=True)
    (tmp_path / "in" / "x.jsonl" / "a.txt").write_text("a")
    with pytest.raises(MarinError, match="no file matches"):
        marin.run(marin.Files(url=str(tmp_path / "in" / "*.jsonl")), store=tmp_path / "store", backend="inline")
    documents = marin.run(marin.Files(url=str(tmp_path / "in" / "x.jsonl")), store=tmp_path / "s", backend="inline")
    assert documents.meta["documents_out"] == 1


@pytest.mark.parametrize("name", ["a.jsonl", "a.JSONL", "a.ndjson.gz", "a.jsonl.zst"])
def test_json_lines_without_the_field_of_the_text_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / name).write_bytes(PACK.get(name.rpartition(".")[2], bytes)(LINE * 2))
    with pytest.raises(MarinError, match=f"`{name}` holds a JSON object a line"):
        marin.run(marin.Files(url=f"{tmp_path}/in/*"), store=tmp_path / "store", backend="inline")


def test_json_lines_among_texts_are_documents_that_are_counted(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_bytes(LINE)
    (tmp_path / "in" / "read.me").write_bytes(b"read me")
    documents = marin.run(marin.Files(url=f"{tmp_path}/in/*"), store=tmp_path / "store", backend="inline")
    assert documents.meta["documents_out"] == 2
    assert documents.meta["notes"]["json_lines_as_one_document"] == 1


def test_ten_thousand_small_files_take_seconds(make_file: MakeFile, run_shards: RunShards) -> None:
    files = [make_file(f"{number % 100}/{number}.txt", b"x" * 1000) for number in range(10_000)]
    began = time.process_time()
    shard = ingest(run_shards, *files, text=None)
    assert shard.value["documents_out"] == 10_000
    assert time.process_time() - began < 10


@pytest.mark.parametrize("change", ["append", "truncate", "overwrite"])
def test_file_that_changes_while_it_is_read_never_gives_a_result(make_file: MakeFile, change: str) -> None:
    file = make_file("a.jsonl", LINE * 300_000)
    chunks = read_chunks(file)
    next(chunks)
    with open(file.url, "r+b") as other:
        if change == "truncate":
            other.truncate(file.size // 2)
        else:
            other.seek(file.size if change == "append" else file.size - len(LINE))
            other.write(b'{"text": "evil"}\n')
    with pytest.raises(InputError, match="input changed during the run"):
        list(chunks)


def test_line_of_a_gigabyte_is_passed_over_in_little_memory_and_the_next_is_taken() -> None:
    filler = b"x" * 2**20

    def chunks() -> Iterator[bytes]:
        yield b"one\n"
        yield from itertools.repeat(filler, 1024)
        yield b"\ntwo\n"

    tracemalloc.start()
    try:
        found = list(LineReader(chunks(), max_line_bytes=10_000_000).until(None))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found == [LineBlock(1, 0, b"one\n"), LongLine(2, 4), LineBlock(3, 5 + 2**30, b"two\n")]
    assert peak < 50_000_000


def test_long_line_costs_its_length_and_not_its_square() -> None:
    def seconds(size: int) -> float:
        began = time.process_time()
        data = b"x" * 4096
        blocks = list(LineReader(itertools.repeat(data, size // 4096), max_line_bytes=2**31).until(None))
        assert sum(len(block.data) for block in blocks) == size
        return time.process_time() - began

    # 8,192 searches through all that is held were 128 GB of reading, some ten seconds
    assert seconds(2**25) < 2


def test_records_with_half_a_surrogate_pair_are_refused_when_they_are_written() -> None:
    with pytest.raises(ConfigurationError, match=r"text 1 has a lone surrogate at character 2"):
        Records(texts=["a", "bc\ud800"])
