"""Ingest: every kind of input is kept, or dropped under a named reason; nothing is guessed."""

import gzip
import json
from collections.abc import Callable

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from marin.base.errors import DataError, InputError
from marin.data.documents import read_documents
from marin.data.hashes import bundle
from marin.data.ingest import ingest_shard, plan_groups, total
from marin.graph.files import FileRef, Shard

MakeFile = Callable[[str, bytes], FileRef]
RunShards = Callable[..., list[Shard]]


def ingest(run_shards: RunShards, *files: FileRef, text: str | None = "text", on_error: str = "skip") -> Shard:
    (shard,) = run_shards(ingest_shard, [bundle(files)], text=text, on_error=on_error)
    return shard


def texts(shard: Shard) -> list[str]:
    return [document.text for document in read_documents(shard)]


def test_ingest_source_files_gives_one_document_each(make_file: MakeFile, run_shards: RunShards) -> None:
    files = [make_file("b/x.py", b"print(1)\n"), make_file("a.py", "é\r\n".encode())]
    (group,) = plan_groups(files, target_bytes=10**9)
    (shard,) = run_shards(ingest_shard, [group], text=None, on_error="fail")
    found = list(read_documents(shard))
    assert [(d.id, d.text, d.source) for d in found] == [("a.py", "é\r\n", "a.py"), ("b/x.py", "print(1)\n", "b/x.py")]
    assert shard.value == {
        "documents_in": 2,
        "documents_out": 2,
        "bytes": 13,
        "dropped": {},
        "notes": {"with_crlf": 1, "with_nul": 0},
        "files": 2,
    }


def test_ingest_json_lines_keeps_other_fields_as_meta(make_file: MakeFile, run_shards: RunShards) -> None:
    data = b'{"z": 1, "doc": {"text": "one", "n": 2}}\r\n\n{"doc": {"text": "two"}}'
    shard = ingest(run_shards, make_file("a.jsonl", data), text="doc.text")
    found = list(read_documents(shard))
    assert [(d.id, d.text, json.loads(d.meta)) for d in found] == [
        ("a.jsonl:1", "one", {"doc": {"n": 2}, "z": 1}),
        ("a.jsonl:3", "two", {"doc": {}}),
    ]
    assert shard.value["notes"]["blank_lines"] == 1


LINE = b'{"text": "good"}\n'

BAD_LINES = [
    (b'{"text": "a\xff"}', "invalid_utf8"),
    (b'{"text": "\\ud800"}', "lone_surrogate"),
    (b'{"text": "a"', "invalid_json"),
    (b'{"text": "a\x00"}', "invalid_json"),
    (b"[1]", "not_an_object"),
    (b'"text"', "not_an_object"),
    (b'{"body": "a"}', "missing_text"),
    (b'{"text": null}', "missing_text"),
    (b'{"text": 7}', "text_not_a_string"),
    (b'{"text": ["a"]}', "text_not_a_string"),
    (b'{"text": ""}', "empty"),
]


@pytest.mark.parametrize(("line", "reason"), BAD_LINES)
def test_ingest_bad_line_is_dropped_alone_and_counted(
    make_file: MakeFile, run_shards: RunShards, line: bytes, reason: str
) -> None:
    shard = ingest(run_shards, make_file("a.jsonl", LINE + line + b"\n" + LINE))
    assert texts(shard) == ["good", "good"]
    assert shard.value["dropped"] == {reason: 1}
    assert shard.value["documents_in"] == 3


@pytest.mark.parametrize(("line", "reason"), [case for case in BAD_LINES if case[1] != "empty"])
def test_ingest_bad_line_fails_by_default_and_says_where(
    make_file: MakeFile, run_shards: RunShards, line: bytes, reason: str
) -> None:
    with pytest.raises(DataError, match=rf"`a.jsonl`, line 2.*\({reason}\)") as caught:
        ingest(run_shards, make_file("a.jsonl", LINE + line), on_error="fail")
    assert "a.jsonl, byte offset" in caught.value.where
    assert "skip" in caught.value.hint


def test_ingest_missing_field_suggests_what_the_record_has(make_file: MakeFile, run_shards: RunShards) -> None:
    with pytest.raises(DataError, match="no field `text`; it has `url`, `texts`") as caught:
        ingest(run_shards, make_file("a.jsonl", b'{"url": "u", "texts": "a"}'), on_error="fail")
    assert "did you mean `texts`?" in caught.value.hint


def test_ingest_invalid_utf8_in_file_names_the_byte(make_file: MakeFile, run_shards: RunShards) -> None:
    file = make_file("latin.py", b"# caf\xe9\n")
    with pytest.raises(DataError, match="byte 0xe9 at offset 5"):
        ingest(run_shards, file, text=None, on_error="fail")
    shard = ingest(run_shards, file, make_file("ok.py", b"x"), text=None)
    assert (texts(shard), shard.value["dropped"]) == (["x"], {"invalid_utf8": 1})


def test_ingest_quarantine_keeps_what_was_wrong(make_file: MakeFile, run_shards: RunShards) -> None:
    shard = ingest(run_shards, make_file("a.jsonl", LINE + b'{"text": "a\xff"}\n'), on_error="quarantine")
    with open(shard.file("quarantine.jsonl").url) as lines:
        (bad,) = map(json.loads, lines)
    assert (bad["path"], bad["line"], bad["offset"], bad["reason"]) == ("a.jsonl", 2, 28, "invalid_utf8")
    assert bad["data"] == '{"text": "a\\xff"}'


def test_ingest_quarantine_of_a_line_does_not_depend_on_its_neighbours(
    make_file: MakeFile, run_shards: RunShards
) -> None:
    said = []
    for name, data in (("alone.jsonl", b'{"a"\n'), ("beside.jsonl", b'{"a"\n' + LINE), ("bare.jsonl", b'{"a"')):
        shard = ingest(run_shards, make_file(name, data), on_error="quarantine")
        with open(shard.file("quarantine.jsonl").url) as lines:
            said.append({**json.loads(lines.readline()), "path": ""})
    assert said[0] == said[1] == said[2]
    assert said[0]["data"] == '{"a"'


def test_ingest_whole_numbers_of_any_length_stay_what_they_are_in_meta(
    make_file: MakeFile, run_shards: RunShards
) -> None:
    large, negative = 2**64, -(10**30)
    fields = f'"b": {{"n": [{negative}, 1.5, "é"]}}, "a": {large}, "m": {2**64 - 1}, "l": {-(2**63)}'
    good, bad = f'{{"text": "x", {fields}}}\n'.encode(), b'{"text": 1}\n'
    for number, data in enumerate((good, good + bad)):
        (document,) = read_documents(ingest(run_shards, make_file(f"{number}.jsonl", data)))
        assert document.meta == (f'{{"a":{large},"b":{{"n":[{negative},1.5,"é"]}},"l":{-(2**63)},"m":{2**64 - 1}}}')


def test_ingest_id_that_is_a_whole_number_of_any_length_is_taken(make_file: MakeFile, run_shards: RunShards) -> None:
    file = make_file("a.jsonl", b'{"text": "x", "n": 123456789012345678901234567890}\n{"text": "y", "n": 1e30}\n')
    (shard,) = run_shards(ingest_shard, [bundle([file])], text="text", id="n", on_error="skip")
    assert [document.id for document in read_documents(shard)] == ["123456789012345678901234567890"]
    assert shard.value["dropped"] == {"missing_id": 1}


def test_ingest_byte_order_mark_is_taken_off_and_noted(make_file: MakeFile, run_shards: RunShards) -> None:
    marked = ingest(run_shards, make_file("a.jsonl", b"\xef\xbb\xbf" + LINE))
    assert (texts(marked), marked.value["notes"]["bom_removed"]) == (["good"], 1)
    whole = ingest(run_shards, make_file("a.txt", b"\xef\xbb\xbf"), text=None)
    assert whole.value["dropped"] == {"empty": 1}
    with pytest.raises(DataError, match="byte 0xff at offset 3"):
        ingest(run_shards, make_file("b.txt", b"\xef\xbb\xbf\xff"), text=None, on_error="fail")


def test_ingest_nul_in_text_is_kept_and_noted(make_file: MakeFile, run_shards: RunShards) -> None:
    shard = ingest(run_shards, make_file("a.txt", b"a\0b"), text=None)
    assert (texts(shard), shard.value["notes"]["with_nul"]) == (["a\0b"], 1)


COMPRESSED = {
    "gz": lambda data: gzip.compress(data[:20]) + b"\0" * 9 + gzip.compress(data[20:]),
    "zst": lambda data: zstandard.compress(data[:20]) + zstandard.compress(data[20:]),
}


@pytest.mark.parametrize("suffix", COMPRESSED)
def test_ingest_compressed_file_of_two_members_is_read_whole(
    make_file: MakeFile, run_shards: RunShards, suffix: str
) -> None:
    data = b"".join(b'{"text": "line %d"}\n' % number for number in range(50_000))
    shard = ingest(run_shards, make_file(f"a.jsonl.{suffix}", COMPRESSED[suffix](data)), on_error="fail")
    assert texts(shard) == [f"line {number}" for number in range(50_000)]


@pytest.mark.parametrize("suffix", COMPRESSED)
def test_ingest_truncated_archive_is_never_whole(make_file: MakeFile, run_shards: RunShards, suffix: str) -> None:
    data = COMPRESSED[suffix](LINE * 3 + b'{"text": "%s"}\n' % bytes(range(97, 122)))
    file = make_file(f"a.jsonl.{suffix}", data[:-14])
    with pytest.raises(DataError, match=r"archive truncated \(archive_damaged\)"):
        ingest(run_shards, file, on_error="fail")
    shard = ingest(run_shards, file)
    assert set(texts(shard)) <= {"good"}
    assert shard.value["dropped"] == {"archive_damaged": 1}


def test_ingest_garbage_with_a_gz_suffix_is_a_damaged_archive(make_file: MakeFile, run_shards: RunShards) -> None:
    with pytest.raises(DataError, match="archive damaged"):
        ingest(run_shards, make_file("a.txt.gz", b"plain text"), text=None, on_error="fail")


@pytest.mark.parametrize("after", [b"other bytes", b"x", b"", gzip.compress(LINE, mtime=0)[:-4]])
@pytest.mark.parametrize("path", ["a.jsonl", "a.jsonl.gz"])
def test_ingest_file_changed_since_the_plan_is_an_input_error(
    make_file: MakeFile, run_shards: RunShards, path: str, after: bytes
) -> None:
    pinned = make_file(path, gzip.compress(LINE))
    make_file(path, after)
    with pytest.raises(InputError, match="input changed during the run"):
        ingest(run_shards, pinned)


def test_ingest_missing_file_is_an_input_error(make_file: MakeFile, run_shards: RunShards) -> None:
    gone = FileRef("gone.txt", "/nowhere/gone.txt", 1, "0")
    with pytest.raises(InputError, match=r"cannot read `gone.txt`"):
        ingest(run_shards, gone, text=None)


def test_ingest_twice_gives_the_same_digest(make_file: MakeFile, run_shards: RunShards) -> None:
    files = [make_file(f"{number}.py", b"x = %d\n" % number) for number in range(20)]
    assert ingest(run_shards, *files, text=None).digest == ingest(run_shards, *files, text=None).digest


def test_total_of_nothing_left_says_what_was_dropped() -> None:
    with pytest.raises(DataError, match=r"no document is left of 3 \(3 empty\)"):
        total([{"documents_in": 3, "documents_out": 0, "bytes": 0, "dropped": {"empty": 3}, "notes": {}}])


def test_plan_groups_of_no_files_is_an_input_error() -> None:
    with pytest.raises(InputError, match="no files"):
        plan_groups([], target_bytes=1)


SIZES = st.dictionaries(st.text("abc/", min_size=1, max_size=8), st.integers(0, 100), min_size=1, max_size=60)


@given(sizes=SIZES, added=st.text("abcd/", min_size=1, max_size=8), size=st.integers(0, 100))
@settings(max_examples=150, deadline=None)
def test_plan_groups_with_a_file_added_changes_its_group_only(sizes: dict[str, int], added: str, size: int) -> None:
    def plan(files: dict[str, int]) -> set[str]:
        pins = [FileRef(path, f"/{path}", length, f"{path}{length}") for path, length in files.items()]
        groups = plan_groups(pins, target_bytes=200)
        assert [file.path for group in groups for file in group.files] == sorted(files)
        return {group.digest for group in groups}

    before = plan({path: length for path, length in sizes.items() if path != added}) if set(sizes) - {added} else set()
    after = plan({**sizes, added: size})
    assert len(before - after) <= 1
    assert len(after - before) <= 2


def test_plan_groups_gathers_small_files_to_the_target() -> None:
    pins = [FileRef(f"{number:05}", "", 1000, str(number)) for number in range(20_000)]
    assert 150 < len(plan_groups(pins, target_bytes=100_000)) < 250
    assert len(plan_groups(pins, target_bytes=1000)) == 20_000
