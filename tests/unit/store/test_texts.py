"""Texts under their own digest: kept once, and only believed as they were kept."""

from pathlib import Path

import pytest

from marin.store.code import read_modules, write_modules
from marin.store.locks import read_lock, write_lock

ODD = "name = 'caf\u00e9 \ud800'\n"  # a lone surrogate, as a file name that is no UTF-8 has


@pytest.mark.parametrize("text", ["", "numpy==2.4.6\n", ODD])
def test_lock_comes_back_as_it_was(tmp_path: Path, text: str):
    store = str(tmp_path)
    digest = write_lock(store, text)
    assert write_lock(store, text) == digest
    assert read_lock(store, digest) == text


def test_modules_come_back_by_name_equal_ones_being_kept_once(tmp_path: Path):
    modules = {"lab": "", "lab.a": ODD, "lab.b": ODD, "lab.c": "x = 1\n"}
    digest = write_modules(str(tmp_path), modules)
    assert read_modules(str(tmp_path), digest) == modules
    assert len(list((tmp_path / "code" / "modules").iterdir())) == 2


def test_text_that_is_damaged_or_gone_is_left_out_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    modules = {"a": "x = 1\n", "b": "x = 2\n", "c": "x = 3\n"}
    digest = write_modules(str(tmp_path), modules)
    places = {path.read_text(): path for path in (tmp_path / "code" / "modules").iterdir()}
    places["x = 1\n"].write_text("x = 0\n")
    places["x = 2\n"].unlink()
    assert read_modules(str(tmp_path), digest) == {"c": "x = 3\n"}
    assert caplog.text.count("does not have the digest in its name") == 1
