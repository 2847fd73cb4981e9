"""The probe: storage on which two writers can both win holds no store."""

import errno
import os
import threading
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from marin import fs
from marin.base.errors import StoreError
from marin.store import Store


class LooksFirst(MemoryFileSystem):
    """Looks whether the file is there and writes then, as fsspec does where a storage brings nothing better."""

    protocol = "looks-first"
    store: ClassVar[dict[str, Any]] = {}
    looked = threading.Barrier(2)

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: object) -> None:
        if mode == "create" and self.exists(path):
            raise FileExistsError(path)
        try:
            self.looked.wait(timeout=0.2)  # another racer has looked too, as happens whenever the storage is far away
        except threading.BrokenBarrierError:
            self.looked.reset()
        super().pipe_file(path, value)


class Overwrites(MemoryFileSystem):
    """Does not know of `mode` and writes over what is there."""

    protocol = "overwrites"
    store: ClassVar[dict[str, Any]] = {}

    def pipe_file(self, path: str, value: bytes, **_: object) -> None:
        super().pipe_file(path, value)


class ReadOnly(MemoryFileSystem):
    """Cannot be written, such as https."""

    protocol = "reads-only"

    def pipe_file(self, path: str, value: bytes, **_: object) -> None:
        raise NotImplementedError


class Vague(MemoryFileSystem):
    """Refuses the one who comes second by an error that says nothing, as some object stores do."""

    protocol = "vague"
    store: ClassVar[dict[str, Any]] = {}
    lock = threading.Lock()

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: object) -> None:
        with self.lock:
            if mode == "create" and self.exists(path):
                raise OSError(errno.EINVAL, "At least one of the pre-conditions you specified did not hold")
            super().pipe_file(path, value)


for kind in (LooksFirst, Overwrites, ReadOnly, Vague):
    fsspec.register_implementation(kind.protocol, kind, clobber=True)


@pytest.mark.parametrize("protocol", ["looks-first", "overwrites"])
def test_probe_storage_that_lets_two_win_holds_no_store(protocol: str):
    with pytest.raises(StoreError, match="lets two writers create the same file") as caught:
        Store.open(f"{protocol}://team/store", write=True)
    assert "S3, GCS or Azure" in caught.value.hint
    assert not fs.exists(f"{protocol}://team/store/store.json")
    assert fs.list_files(f"{protocol}://team") == []


def test_probe_storage_that_cannot_be_written_is_refused_by_name():
    with pytest.raises(StoreError, match="NotImplementedError") as caught:
        Store.open("reads-only://team/store", write=True)
    assert "--store" in caught.value.hint


def test_probe_storage_that_refuses_a_second_writer_vaguely_passes():
    Store.open("vague://team/store", write=True)
    assert fs.exists("vague://team/store/store.json")
    assert fs.create("vague://team/x", b"1")
    assert not fs.create("vague://team/x", b"2")


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK])
def test_probe_file_system_without_hard_links_is_refused_with_a_hint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
):
    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", refuse)  # FAT, exFAT and many FUSE file systems
    with pytest.raises(StoreError, match="no hard links") as caught:
        Store.open(str(tmp_path / "store"), write=True)
    assert "another disk" in caught.value.hint
    assert list((tmp_path / "store").iterdir()) == []


def test_probe_bucket_that_does_not_exist_is_named(tmp_path: Path):
    class Absent(MemoryFileSystem):
        protocol = "absent"

        def pipe_file(self, path: str, value: bytes, **_: object) -> None:
            raise FileNotFoundError("The specified bucket does not exist")

    fsspec.register_implementation("absent", Absent, clobber=True)
    with pytest.raises(StoreError, match="bucket does not exist"):
        Store.open("absent://team/store", write=True)
