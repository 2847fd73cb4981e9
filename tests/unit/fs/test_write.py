"""Writing: streams that are whole or absent, and hash what passes."""

import errno
import io
import itertools
import os
import pickle
import subprocess
import sys
import uuid
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from marin import fs
from marin.base.errors import ConfigurationError, StoreError


@pytest.fixture(params=["local", "memory"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "out") if request.param == "local" else f"memory://{uuid.uuid4().hex}/out"


def test_output_takes_what_pyarrow_and_numpy_write(root: str):
    output = fs.FolderOutput(root)
    table = pa.table({"text": ["a", "b"] * 1000})
    with output.open("rows/table.parquet") as file:
        parquet.write_table(table, file)
    with output.open("tokens.npy") as file:
        np.save(file, np.arange(100_000, dtype=np.uint32))
    with output.open("empty.npy") as file:
        np.save(file, np.empty((0, 3), dtype=np.uint16))
    with output.open("text.txt") as file, io.TextIOWrapper(file, encoding="utf-8") as text:
        text.write("näïve")  # the wrapper closes the stream, as many writers do
    assert [file.path for file in output.files] == ["empty.npy", "rows/table.parquet", "text.txt", "tokens.npy"]
    for file in output.files:
        assert fs.digest_file(file.url) == (file.size, file.digest)
    reader = fs.FileReader()
    contents = output.contents()
    assert parquet.read_table(reader.open(contents.file("rows/table.parquet"))) == table
    assert np.load(reader.open(contents.file("tokens.npy")))[-1] == 99_999
    assert reader.read(contents.file("text.txt")).decode() == "näïve"


def test_output_counts_the_bytes_of_any_buffer(root: str):
    output = fs.FolderOutput(root)
    with output.open("x") as file:
        assert file.write(np.arange(6, dtype=np.uint16).reshape(2, 3)) == 12
        assert file.write(np.empty((0, 3))) == 0
        assert file.tell() == 12
    assert output.files[0].size == 12


def test_output_file_whose_block_raises_is_absent_and_can_be_written_again(root: str):
    output = fs.FolderOutput(root)

    def fail_halfway() -> None:
        with output.open("x") as file:
            file.write(b"half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_halfway()
    assert output.files == ()
    assert not fs.exists(fs.join(root, "x"))
    output.write("x", b"whole")
    assert fs.read(output.files[0].url) == b"whole"


def test_output_pickles_with_what_it_has_recorded(root: str):
    output = fs.FolderOutput(root)
    output.write("x", b"1")
    again = pickle.loads(pickle.dumps(output))
    assert (again.url, again.files) == (output.url, output.files)
    with pytest.raises(ConfigurationError, match="written twice"):
        again.write("x", b"2")


def test_output_adopts_what_another_process_wrote(root: str):
    rank, output = fs.FolderOutput(root), fs.FolderOutput(root)
    output.adopt([rank.write("model.bin", b"1")])
    assert output.contents().file("model.bin").size == 1


def test_output_file_in_the_place_of_a_folder_is_refused(tmp_path: Path):
    output = fs.FolderOutput(str(tmp_path))
    output.write("x", b"1")
    with pytest.raises(StoreError, match="a file stands"):
        output.write("x/y", b"2")


FULL_DISK = """
import resource, sys
from marin import fs
from marin.base.errors import StoreError
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    with fs.write_stream(sys.argv[1]) as stream:
        for _ in range(int(sys.argv[2])):
            stream.write(b"x" * 1000)
except StoreError as error:
    sys.exit(f"refused: {error.what}")
"""


@pytest.mark.parametrize("pieces", [101, 1000])  # the last piece fails: in the buffer, or on its way to disk
def test_stream_on_a_full_disk_is_a_store_error_and_leaves_nothing(tmp_path: Path, pieces: int):
    command = [sys.executable, "-c", FULL_DISK, str(tmp_path / "big"), str(pieces)]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert ended.stderr == "refused: storage refused: File too large\n"
    assert list(tmp_path.iterdir()) == []


def test_replace_gives_the_new_content_whole(root: str):
    url = fs.join(root, "heartbeat.json")
    for data in (b"first", b"second, longer", b"3"):
        fs.replace(url, data)
        assert fs.read(url) == data
    assert fs.list_folder(root) == ["heartbeat.json"]


def test_delete_unchanged_spares_what_another_has_written(root: str):
    url = fs.join(root, "manifest.json")
    fs.delete_unchanged(url, b"damaged")
    fs.create(url, b"another's")
    fs.delete_unchanged(url, b"damaged")
    assert fs.read(url) == b"another's"
    fs.delete_unchanged(url, b"another's")
    assert fs.list_folder(root) == []


def test_delete_of_nothing_is_fine(root: str):
    fs.delete(fs.join(root, "absent"))
    fs.delete_folder(fs.join(root, "absent"))
    fs.write(fs.join(root, "deep/er/x"), b"1")
    fs.delete_folder(fs.join(root, "deep"))
    assert fs.list_files(root) == []


@pytest.mark.parametrize("durable", [True, False])
def test_create_is_flushed_to_the_disk_unless_it_need_not_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durable: bool
):
    flushed: list[int] = []
    monkeypatch.setattr(os, "fsync", flushed.append)
    url = str(tmp_path / "lease.json")
    assert fs.create(url, b"first", durable=durable)
    assert not fs.create(url, b"second", durable=durable)
    assert fs.read(url) == b"first"
    assert bool(flushed) is durable
    assert fs.list_folder(str(tmp_path)) == ["lease.json"]


def test_create_that_failed_after_its_file_stood_is_a_success(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    # A stale NFS handle in the fsync of the folder: tried again, the file that stands there is mine.
    real, calls = os.fsync, itertools.count()

    def fsync(descriptor: int) -> None:
        if next(calls) == 1:
            raise OSError(errno.ESTALE, "Stale file handle")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    assert fs.create(str(tmp_path / "lease.json"), b"mine")
    assert next(calls) == 3
    assert fs.list_folder(str(tmp_path)) == ["lease.json"]


def test_probe_passes_and_leaves_nothing(root: str):
    fs.probe(root)
    assert fs.list_files(root) == []


def test_open_read_twice_gives_two_positions(root: str):
    url = fs.join(root, "x")
    fs.write(url, b"0123456789")
    with fs.open_read(url) as first, fs.open_read(url) as second:
        assert (first.read(4), second.read(4)) == (b"0123", b"0123")
        first.seek(8)
        assert (first.read(), second.read()) == (b"89", b"456789")
