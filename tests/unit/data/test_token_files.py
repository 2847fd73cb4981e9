"""Token files: what is written is read back, by whole, by ranges, locally and remotely."""

import struct
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marin import fs
from marin.base.errors import DataError
from marin.data import blocks
from marin.data.arrays import open_array
from marin.data.token_files import (
    INDEX,
    TOKENS,
    bytes_of,
    fixed_bytes,
    read_index,
    token_dtype,
    write_array,
    write_index,
)
from marin.graph.files import FileRef


@pytest.fixture(scope="module", params=["local", "memory"])
def fresh(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[[], fs.FolderOutput]:
    """Return a maker of empty outputs."""
    root = str(tmp_path_factory.mktemp("arrays")) if request.param == "local" else "memory://arrays"
    return lambda: fs.FolderOutput(f"{root}/{uuid4().hex}")


@given(
    parts=st.lists(st.lists(st.integers(0, 2**16 - 1), max_size=9), max_size=9),
    dtype=st.sampled_from(["<u2", "<u4"]),
    data=st.data(),
)
def test_array_any_parts_are_read_back(
    fresh: Callable[[], fs.FolderOutput], parts: list[list[int]], dtype: str, data: st.DataObject
) -> None:
    output = fresh()
    flat = np.array([token for part in parts for token in part], dtype=dtype)
    write_array(output, TOKENS, [np.array(part, dtype=dtype) for part in parts], flat.shape, np.dtype(dtype))
    array = open_array(output.files[0])
    assert (array.shape, array.dtype) == (flat.shape, flat.dtype)
    start = data.draw(st.integers(0, len(flat)))
    stop = data.draw(st.integers(start, len(flat)))
    np.testing.assert_array_equal(array.read(start, stop), flat[start:stop])
    if len(flat):
        rows = np.array(data.draw(st.lists(st.integers(0, len(flat) - 1))), dtype=np.int64)
        np.testing.assert_array_equal(array.take(rows), flat[rows])


def test_array_is_plain_npy_whose_data_begin_at_64_bytes(tmp_path: Path) -> None:
    output = fs.FolderOutput(str(tmp_path))
    rows = np.arange(12, dtype="<u2").reshape(3, 4)
    write_array(output, TOKENS, [rows[:1], rows[1:]], (3, 4), rows.dtype)
    np.testing.assert_array_equal(np.load(tmp_path / TOKENS), rows)
    data = (tmp_path / TOKENS).read_bytes()
    assert (10 + struct.unpack("<H", data[8:10])[0]) % 64 == 0
    assert data.endswith(rows.tobytes())


def test_array_larger_than_a_block_is_read_by_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 100)
    output = fs.FolderOutput(f"memory://arrays/{uuid4().hex}")
    rows = np.arange(3000, dtype="<u4").reshape(300, 10)
    write_array(output, TOKENS, [rows], rows.shape, rows.dtype)
    array = open_array(output.files[0])
    order = np.random.default_rng(0).permutation(300)
    np.testing.assert_array_equal(array.take(order), rows[order])
    np.testing.assert_array_equal(array.read(0, 300), rows)


def test_array_of_another_size_than_its_header_says_is_refused(tmp_path: Path) -> None:
    output = fs.FolderOutput(str(tmp_path))
    write_array(output, TOKENS, [np.arange(9, dtype="<u2")], (9,), np.dtype("<u2"))
    path = tmp_path / TOKENS
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(DataError, match="its header says"):
        open_array(FileRef(TOKENS, str(path), *fs.digest_file(str(path))))
    path.write_bytes(b"something else")
    with pytest.raises(DataError, match="is no array"):
        open_array(FileRef(TOKENS, str(path), *fs.digest_file(str(path))))


def test_index_batches_are_read_alone(fresh: Callable[[], fs.FolderOutput]) -> None:
    ids = np.arange(80, dtype=np.uint8).reshape(5, 16)
    sources = pa.array(["a", "b", "a", "c", "b"], pa.large_string())
    table = pa.table({"id": fixed_bytes(ids), "source": sources.dictionary_encode()})
    output = fresh()
    write_index(output, table, [2, 2, 5])
    file = next(file for file in output.files if file.path == INDEX)
    assert read_index(file)["source"].to_pylist() == sources.to_pylist()
    assert read_index(file, 1, 2).num_rows == 0
    last = read_index(file, 2, 3)
    assert last["source"].to_pylist() == ["a", "c", "b"]
    np.testing.assert_array_equal(bytes_of(last["id"]), ids[2:])


def test_token_dtype_is_uint16_up_to_65536_ids() -> None:
    assert [token_dtype(size).name for size in (2, 65_536, 65_537)] == ["uint16", "uint16", "uint32"]
