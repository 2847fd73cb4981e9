"""Blocks: a flipped bit names shard and block, wherever the file lies; what is wanted next is fetched ahead."""

from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin import fs
from marin.base.errors import StoreError
from marin.data import blocks
from marin.data.arrays import open_array
from marin.data.block_cache import BlockCache
from marin.data.blocks import BlockSums, Checked
from marin.data.hashes import bundle
from marin.data.loader import SequenceData
from marin.data.token_files import INDEX, TOKENS
from marin.graph.files import FileRef, Shard
from marin.testing import FaultyStorage, Rule

CONTEXT, ROWS = 15, 400  # 32 bytes a row


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 1024)


def rows_at(url: str) -> tuple[Shard, np.ndarray]:
    """Write a shard of rows whose stored order is its numbers; returns it and its rows."""
    output = fs.FolderOutput(url)
    rows = np.arange(ROWS * (CONTEXT + 1), dtype="<u2").reshape(ROWS, CONTEXT + 1)
    sums = blocks.write_summed(output, TOKENS, [rows], rows.shape, rows.dtype)
    output.write(INDEX, b"not read here")
    value: Any = {"context": CONTEXT, "rows": ROWS, "targets": ROWS * CONTEXT, "padded_row": None, "padding": 0}
    shard = bundle(output.files, {**value, "blocks": sums})
    return Shard("0007", shard.digest, shard.files, shard.value), rows


def flip(file: FileRef, at: int) -> None:
    data = bytearray(fs.read(file.url))
    data[at] ^= 1
    fs.replace(file.url, bytes(data))


@pytest.mark.parametrize("kind", ["local", "memory"])
def test_loader_of_a_flipped_bit_names_shard_and_block_when_it_is_reached(tmp_path: Path, kind: str) -> None:
    shard, rows = rows_at(str(tmp_path / "rows") if kind == "local" else f"memory://blocks/{uuid4().hex}")
    flip(shard.file(TOKENS), 5 * 1024 + 100)
    data = SequenceData([shard], CONTEXT)
    number = np.arange(ROWS)
    is_good = (number * 32 + 128 + 32 <= 5 * 1024) | (number * 32 + 128 >= 6 * 1024)
    np.testing.assert_array_equal(data.batch(number[is_good]).tokens, rows[is_good, :-1])
    for bad in number[~is_good][[0, 5, -1]]:
        with pytest.raises(StoreError, match=r"block 5 of `tokens.npy` of shard 0007 is damaged") as caught:
            data.batch(np.array([bad]))
        assert "bytes from 5120" in caught.value.where
        assert "delete this file" in caught.value.hint


@given(parts=st.lists(st.binary(max_size=3000), max_size=6))
@settings(max_examples=50)
def test_block_sums_do_not_depend_on_how_bytes_arrive(parts: list[bytes]) -> None:
    together, one = BlockSums(), BlockSums()
    for part in parts:
        together.update(memoryview(part))
    whole = b"".join(parts)
    one.update(memoryview(whole))
    sums = one.finish()
    assert together.finish() == sums
    checked = Checked(FileRef("x", "x", len(whole), ""), sums)
    assert len(sums) == -(-len(whole) // blocks.BLOCK_BYTES)
    for number in range(len(sums)):
        start, length = checked.block_range(number)
        assert blocks.check_block(checked, number, whole[start : start + length])


def test_cache_fetches_a_block_that_arrived_damaged_once_more() -> None:
    storage = FaultyStorage.memory("blocks")
    shard, rows = rows_at(storage.url("rows"))
    SequenceData([shard], CONTEXT).batch(np.array([3]))
    whole = storage.calls["read"]
    storage.rules = [Rule("flip", operation="read", nth=1)]
    np.testing.assert_array_equal(SequenceData([shard], CONTEXT).batch(np.array([3])).tokens, rows[3:4, :-1])
    assert storage.calls["read"] == 2 * whole + 1


def test_cache_on_disk_outlives_its_process_and_is_not_trusted(tmp_path: Path) -> None:
    storage = FaultyStorage.memory("blocks")
    shard, rows = rows_at(storage.url("rows"))
    wanted = np.arange(0, ROWS, 7)

    def read() -> int:
        before = storage.calls["read"]
        cache = BlockCache(folder=str(tmp_path), memory_blocks=4)
        tokens = SequenceData([shard], CONTEXT, cache=cache).batch(wanted).tokens
        np.testing.assert_array_equal(tokens, rows[wanted, :-1])
        return storage.calls["read"] - before

    assert read() > 10
    assert read() == 0
    kept = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    for path in kept[:3]:
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(bytes(data))
    assert read() == 3


def test_cache_on_disk_keeps_to_its_bound(tmp_path: Path) -> None:
    shard, _ = rows_at(f"memory://blocks/{uuid4().hex}")
    cache = BlockCache(folder=str(tmp_path), disk_bytes=5000, memory_blocks=2)
    SequenceData([shard], CONTEXT, cache=cache).batch(np.arange(ROWS))
    assert 1000 < sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) <= 5000


@pytest.mark.parametrize(
    ("starts", "expected"),
    [
        ((0, 32, 64, 96), set(range(12))),  # steady: 8 batches ahead of the third, and of the fourth
        ((320, 32, 256, 0), {0, 1, 2, 3, 8, 10, 11}),  # permuted: what was asked for, and the header's blocks
    ],
)
def test_loader_fetches_ahead_what_a_steady_reader_will_want(starts: tuple[int, ...], expected: set[int]) -> None:
    storage = FaultyStorage.memory("blocks")
    shard, rows = rows_at(storage.url("rows"))
    data = SequenceData(
        [shard], CONTEXT, cache=BlockCache(memory_blocks=32, threads=1)
    )  # one thread: first in, first out
    for start in starts:  # a block is 32 rows
        np.testing.assert_array_equal(data.batch(np.arange(start, start + 8)).tokens, rows[start : start + 8, :-1])
    data.batch(np.array([352]))  # in block 11, after all that was to be fetched ahead
    assert storage.calls["read"] == len(expected)


def test_remote_spans_are_read_across_blocks() -> None:
    output = fs.FolderOutput(f"memory://blocks/{uuid4().hex}")
    tokens = np.arange(5000, dtype="<u2")
    sums = blocks.write_summed(output, TOKENS, [tokens], tokens.shape, tokens.dtype)
    array = open_array(output.files[0], sums=sums)
    starts, lengths = np.array([0, 4990, 300]), np.array([1, 10, 2000])
    expected = np.concatenate([tokens[start : start + length] for start, length in zip(starts, lengths, strict=True)])
    np.testing.assert_array_equal(array.spans(starts, lengths), expected)
    array.prefetch(starts, lengths)
