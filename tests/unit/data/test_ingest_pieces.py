"""Large files are cut: the pieces give the same documents as the whole, whoever reads them, and survive a kill."""

import bz2
import gzip
import json
import lzma
import math
import random
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

import marin
from marin import fs
from marin.base.errors import InputError, MarinError, StepError
from marin.data.codecs import CODECS, Damaged, Decompressed
from marin.data.documents import read_documents
from marin.data.frames import BEGIN, FRAMES, frame_before, survey_frames_shard
from marin.data.hashes import bundle
from marin.data.ingest import ingest_shard
from marin.data.lines import LineBlock, LineReader
from marin.data.splits import Piece, piece_shard
from marin.data.survey import survey_shard
from marin.graph.files import FileRef, Shard

MakeFile = Callable[[str, bytes], FileRef]
RunShards = Callable[..., list[Shard]]

COMPRESS = {"": bytes, ".gz": gzip.compress, ".zst": zstandard.compress, ".xz": lzma.compress, ".bz2": bz2.compress}


def lines_of(number: int, seed: int = 0) -> bytes:
    drawn = random.Random(seed)
    records = ({"n": row, "text": f"{row} {drawn.getrandbits(200):x}" * drawn.randint(1, 3)} for row in range(number))
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


_listening: list[list[str]] = []


def _hear(event: str, arguments: tuple[object, ...]) -> None:
    if _listening and event == "open":
        _listening[-1].append(str(arguments[0]))


sys.addaudithook(_hear)


@contextmanager
def opened_files() -> Iterator[list[str]]:
    """Give the paths of files that are opened meanwhile."""
    opened: list[str] = []
    _listening.append(opened)
    yield opened
    _listening.pop()


def found(step_documents: marin.Documents) -> list[tuple[str, str, str]]:
    documents = [d for shard in step_documents.shards for d in read_documents(shard)]
    return [(d.id, d.text, d.meta) for d in documents]


def run_files(tmp_path: Path, store: str, *, shard_bytes: int, **options: object) -> marin.Documents:
    step = marin.Files(url=str(tmp_path / "in" / "*"), text="text", shard_bytes=shard_bytes, **options)
    return marin.run(step, store=tmp_path / store, backend="inline")


@pytest.mark.parametrize("suffix", COMPRESS)
def test_files_of_shards_so_small_that_they_are_too_many_are_refused_before_a_file_is_read(
    tmp_path: Path, suffix: str
) -> None:
    (tmp_path / "in").mkdir()
    held = COMPRESS[suffix](random.Random(0).randbytes(10**6).hex().encode())
    (tmp_path / "in" / f"a.jsonl{suffix}").write_bytes(held)
    with pytest.raises(StepError, match="pieces") as refused:
        run_files(tmp_path, "store", shard_bytes=1)
    least = int((refused.value.hint or "").split()[3].strip(";").replace(",", ""))
    assert 1 < least <= len(held) / 50_000


@pytest.mark.parametrize("suffix", COMPRESS)
def test_files_cut_into_pieces_give_the_documents_of_the_whole(tmp_path: Path, suffix: str) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / f"a.jsonl{suffix}").write_bytes(COMPRESS[suffix](lines_of(20_000)))
    (tmp_path / "in" / "b.jsonl").write_bytes(lines_of(3, seed=1))
    whole = run_files(tmp_path, "whole", shard_bytes=10**9)
    cut = run_files(tmp_path, "cut", shard_bytes=150_000)
    assert found(cut) == found(whole)
    assert len(cut.shards) > 3 > len(whole.shards)
    assert cut.meta == whole.meta
    assert cut.meta["files"] == 2


@given(
    data=st.lists(st.sampled_from([b"a", b"\n", b"bcd", b"\r\n", b"\n\n"]), max_size=40).map(b"".join),
    cuts=st.lists(st.integers(0, 60), max_size=4),
    chunk=st.integers(1, 9),
)
@settings(max_examples=300, deadline=None)
def test_line_reader_paused_anywhere_gives_each_line_once(data: bytes, cuts: list[int], chunk: int) -> None:
    expected, offset = [], 0
    for number, line in enumerate(data.split(b"\n"), 1):
        expected.append((number, offset))
        offset += len(line) + 1
    expected = [(number, start) for number, start in expected if start < len(data)]
    reader = LineReader((data[at : at + chunk] for at in range(0, len(data), chunk)), max_line_bytes=1000)
    starts, joined = [], b""
    for stop in [*sorted(cuts), None]:
        for block in reader.until(stop):
            assert isinstance(block, LineBlock)
            assert block.offset == len(joined)
            assert stop is None or block.offset < stop
            number, at = block.number, block.offset
            for line in block.data.split(b"\n"):
                if at < block.offset + len(block.data):
                    starts.append((number, at))
                number, at = number + 1, at + len(line) + 1
            joined += block.data
            assert stop is None or starts[-1][1] < stop
    assert joined == data
    assert starts == expected


@given(
    members=st.lists(
        st.binary(max_size=3000) | st.text("ab \n", max_size=3000).map(str.encode), min_size=1, max_size=3
    ),
    level=st.sampled_from([0, 1, 9]),
    flipped=st.none() | st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 7)),
    kept=st.just(1.0) | st.floats(0, 1),
    chunk=st.sampled_from([1, 50, 10**6]),
)
@settings(max_examples=300, deadline=None)
def test_gzip_gives_what_zlib_gives_and_damage_wherever_zlib_finds_some(
    members: list[bytes], level: int, flipped: tuple[float, int] | None, kept: float, chunk: int
) -> None:
    stored = bytearray(b"".join(gzip.compress(member, level, mtime=0) for member in members))
    if flipped is not None:
        stored[int(flipped[0] * len(stored))] ^= 1 << flipped[1]
    stored = stored[: math.ceil(kept * len(stored))]
    try:
        expected = gzip.decompress(stored)
    except (OSError, EOFError, zlib.error):
        expected = None
    chunks = (bytes(stored[at : at + chunk]) for at in range(0, len(stored), chunk))
    given, damaged = bytearray(), False
    try:
        for piece in Decompressed(chunks, CODECS["gz"], max_ratio=1e9):
            given += piece
    except Damaged:
        damaged = True
    assert damaged == (expected is None)
    assert damaged or given == expected


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_pieces_in_any_order_give_the_same_shards(make_file: MakeFile, run_shards: RunShards, suffix: str) -> None:
    data = lines_of(4000)
    file = make_file(f"a.jsonl{suffix}", COMPRESS[suffix](data))
    (survey,) = run_shards(survey_shard, [bundle([file])])
    size = len(data) // 6
    pieces = [piece_shard(file, survey.files, Piece(at, at + size)) for at in range(0, len(data), size)]
    forward = run_shards(ingest_shard, pieces, text="text", on_error="fail")
    backward = run_shards(ingest_shard, pieces[::-1], text="text", on_error="fail")
    assert [shard.digest for shard in forward] == [shard.digest for shard in backward][::-1]
    assert sum(shard.value["documents_out"] for shard in forward) == 4000


@pytest.mark.parametrize("suffix", [".gz", ".zst", ".xz", ".bz2"])
def test_pieces_in_order_read_a_stream_once(make_file: MakeFile, run_shards: RunShards, suffix: str) -> None:
    data = lines_of(4000)
    file = make_file(f"a.jsonl{suffix}", COMPRESS[suffix](data))
    (survey,) = run_shards(survey_shard, [bundle([file])])
    size = len(data) // 20
    pieces = [piece_shard(file, survey.files, Piece(at, at + size)) for at in range(0, len(data), size)]
    with opened_files() as opened:
        run_shards(ingest_shard, pieces, text="text", on_error="fail")
    assert sum(path.endswith(f"a.jsonl{suffix}") for path in opened) == 1
    with opened_files() as opened:
        run_shards(ingest_shard, pieces[::2], text="text", on_error="fail")
    assert sum(path.endswith(f"a.jsonl{suffix}") for path in opened) == 1


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_file_changed_after_the_survey_never_gives_a_shard(
    make_file: MakeFile, run_shards: RunShards, suffix: str
) -> None:
    data = lines_of(4000)
    file = make_file(f"a.jsonl{suffix}", COMPRESS[suffix](data))
    (survey,) = run_shards(survey_shard, [bundle([file])])
    make_file(f"a.jsonl{suffix}", COMPRESS[suffix](lines_of(4000, seed=7)))
    piece = piece_shard(file, survey.files, Piece(1000, 2000))
    with pytest.raises(InputError, match="input changed during the run"):
        run_shards(ingest_shard, [piece], text="text", on_error="skip")
    with pytest.raises(InputError, match="input changed during the run"):
        run_shards(survey_shard, [bundle([file])])


@pytest.mark.parametrize("suffix", [".gz", ".zst", ".xz", ".bz2"])
def test_truncated_large_archive_is_reported_once(tmp_path: Path, suffix: str) -> None:
    (tmp_path / "in").mkdir()
    packed = b"".join(COMPRESS[suffix](lines_of(2000, seed=seed)) for seed in range(10))
    (tmp_path / "in" / f"a.jsonl{suffix}").write_bytes(packed[:-50])
    cut = run_files(tmp_path, "cut", shard_bytes=len(packed) // 8, on_error="quarantine")
    assert len(cut.shards) > 2
    assert cut.meta["dropped"] == {"archive_damaged": 1}
    assert cut.meta["documents_in"] == cut.meta["documents_out"] + 1
    assert cut.meta["documents_out"] >= 9 * 2000 or suffix == ".zst"
    whole = run_files(tmp_path, "whole", shard_bytes=10**9, on_error="quarantine")
    assert found(cut) == found(whole)
    with pytest.raises(MarinError, match="archive truncated"):
        run_files(tmp_path, "fail", shard_bytes=len(packed) // 8)


def test_files_with_a_large_file_added_redo_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for number in range(6):
        (tmp_path / "in" / f"{number}.jsonl").write_bytes(lines_of(4000 if number % 2 else 40, seed=number))
    before = {shard.digest for shard in run_files(tmp_path, "store", shard_bytes=100_000).shards}
    (tmp_path / "in" / "2a.jsonl").write_bytes(lines_of(4000, seed=9))
    after = {shard.digest for shard in run_files(tmp_path, "store", shard_bytes=100_000).shards}
    assert len(before) > 10
    assert before < after


KILLED = """
import os, signal, sys
import marin
from marin.data.streams import PieceLines
read = PieceLines.__iter__
def kill_at_the_sixth(self):
    if self.piece.start >= 5 * (self.piece.stop - self.piece.start):
        os.kill(os.getpid(), signal.SIGKILL)
    return read(self)
PieceLines.__iter__ = kill_at_the_sixth
marin.run(marin.Files(url=sys.argv[1], text="text", shard_bytes=100_000), store=sys.argv[2], backend="inline")
"""


def test_kill_within_one_gz_keeps_all_pieces_before(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl.gz").write_bytes(gzip.compress(lines_of(40_000)))
    command = [sys.executable, "-c", KILLED, str(tmp_path / "in" / "*"), str(tmp_path / "killed")]
    done = subprocess.run(command, capture_output=True, check=False, timeout=60)
    assert done.returncode == -9, done.stderr.decode()

    def kept() -> dict[Path, int]:
        return {path: path.stat().st_ino for path in (tmp_path / "killed" / "shards").glob("*/*/manifest.json")}

    before = kept()
    assert len(before) == 1 + 5  # the survey and five pieces
    again = run_files(tmp_path, "killed", shard_bytes=100_000)
    assert before.items() <= kept().items()
    assert len(again.shards) > 8
    assert again.digest == run_files(tmp_path, "other", shard_bytes=100_000).digest


def zst_of_frames(data: bytes, frames: int, **options: bool) -> bytes:
    """Compress in frames that end anywhere, also within a line, with a skippable one between, as pzstd writes."""
    pack = zstandard.ZstdCompressor(**options)
    size = len(data) // frames + 1
    skippable = b"\x50\x2a\x4d\x18\x04\x00\x00\x00abcd"
    return b"".join(skippable + pack.compress(data[at : at + size]) for at in range(0, len(data), size))


def test_zst_of_frames_is_read_from_the_frame_before_a_piece(make_file: MakeFile, run_shards: RunShards) -> None:
    data = lines_of(60_000)
    framed, single = (
        make_file("a.jsonl.zst", zst_of_frames(data, 9)),
        make_file("b/a.jsonl.zst", zstandard.compress(data)),
    )
    (survey,) = run_shards(survey_frames_shard, [bundle([framed])])
    (other,) = run_shards(survey_shard, [bundle([FileRef("a.jsonl.zst", single.url, single.size, single.digest)])])
    places = [frame_before(survey.file(FRAMES), at) for at in (0, 1, len(data) // 2, len(data))]
    assert places[0] == places[1] == BEGIN
    assert len(data) // 3 < places[2].plain < len(data) // 2 < places[3].plain
    assert places[2].newlines == data[: places[2].plain].count(b"\n")
    assert survey.value["frames"] == 4  # every other one, of 0.8 MB each
    size = len(data) // 12
    pieces = [Piece(at, at + size) for at in range(0, len(data), size)]
    random.Random(0).shuffle(pieces)
    parts = run_shards(
        ingest_shard, [piece_shard(framed, survey.files, p) for p in pieces], text="text", on_error="fail"
    )
    whole = run_shards(
        ingest_shard, [piece_shard(single, other.files, p) for p in pieces], text="text", on_error="fail"
    )
    assert [[d.text for d in read_documents(part)] for part in parts] == [
        [d.text for d in read_documents(part)] for part in whole
    ]
    ids = sorted((d.id for part in parts for d in read_documents(part)), key=lambda name: int(name.rpartition(":")[2]))
    assert ids == [f"a.jsonl.zst:{number}" for number in range(1, 60_001)]


@pytest.mark.parametrize("damage", ["cut", "flip"])
def test_zst_of_frames_that_is_damaged_gives_what_the_whole_gives(tmp_path: Path, damage: str) -> None:
    (tmp_path / "in").mkdir()
    packed = bytearray(zst_of_frames(lines_of(30_000), 9, write_checksum=True))
    if damage == "cut":
        del packed[-200:]
    else:
        packed[len(packed) * 2 // 3] ^= 1
    (tmp_path / "in" / "a.jsonl.zst").write_bytes(packed)
    cut = run_files(tmp_path, "cut", shard_bytes=len(packed) // 6, on_error="quarantine")
    whole = run_files(tmp_path, "whole", shard_bytes=10**9, on_error="quarantine")
    assert len(cut.shards) > 2
    assert cut.meta["dropped"] == whole.meta["dropped"] == {"archive_damaged": 1}
    assert found(cut) == found(whole)


def test_zst_of_frames_that_ends_in_a_bomb_is_told_so_by_the_piece_that_meets_it(
    make_file: MakeFile, run_shards: RunShards
) -> None:
    data = lines_of(30_000)
    file = make_file("a.jsonl.zst", zst_of_frames(data, 4) + zstandard.compress(b" " * 100_000_000))
    (survey,) = run_shards(survey_frames_shard, [bundle([file])])
    cuts = [[Piece(0, 10**9)], [Piece(0, len(data) // 2), Piece(len(data) // 2, 10**9)]]
    told = []
    for pieces in cuts:
        shards = [piece_shard(file, survey.files, piece) for piece in pieces]
        made = run_shards(ingest_shard, shards, text="text", on_error="quarantine", max_ratio=20.0)
        assert sum(shard.value["documents_out"] for shard in made) == 30_000
        told.append(fs.read_file(made[-1].file("quarantine.jsonl")))
    assert told[0] == told[1]
    assert b"archive_bomb" in told[0]


def test_damage_after_a_pause_stays_where_it_was() -> None:
    def chunks():
        yield b"one\ntwo\nthr"
        raise Damaged("gone", 11)

    reader = LineReader(chunks(), max_line_bytes=100)
    assert b"".join(block.data for block in reader.until(4)) == b"one\n"
    assert b"".join(block.data for block in reader.until(None)) == b"two\n"
    assert (reader.end, reader.damage.reason) == (11, "archive_damaged")
