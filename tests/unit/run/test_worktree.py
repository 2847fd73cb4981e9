"""The working tree as it is sent: what travels, what never does, and that equal trees are equal archives."""

import os
import subprocess
import zipfile
from pathlib import Path

import pytest

from marin.base.errors import ConfigurationError
from marin.run import worktree


def write(folder: Path, texts: dict[str, str]) -> None:
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def git(folder: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=ada", "-c", "user.email=ada@lab")
    subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    write(tmp_path, {"a.py": "1", "sub/b.py": "2", "data/big": "ignored", "gone.py": "deleted"})
    (tmp_path / ".gitignore").write_text("data/\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    (tmp_path / "gone.py").unlink()
    return tmp_path


def test_repository_sends_tracked_and_untracked_files_but_no_ignored_one(repository: Path):
    write(repository, {"new.py": "untracked", "data/more": "ignored too"})
    assert worktree.find_root(str(repository / "sub")) == str(repository.resolve())
    tree = worktree.read_tree(str(repository))
    assert tree.files == (".gitignore", "a.py", "new.py", "sub/b.py")
    assert tree.bytes == len("data/\n") + len("1") + len("untracked") + len("2")


def test_repository_with_a_store_and_an_environment_in_it_sends_neither(repository: Path):
    write(repository, {"results/artifacts/x": "bytes", "env/lib/y.py": "", "sub/__pycache__/b": ""})
    (repository / "results" / "store.json").write_text("{}")
    (repository / "env" / "pyvenv.cfg").write_text("")
    assert worktree.read_tree(str(repository)).files == (".gitignore", "a.py", "sub/b.py")


def test_submodule_and_linked_folder_travel_as_files(repository: Path, tmp_path_factory: pytest.TempPathFactory):
    other = tmp_path_factory.mktemp("other")
    write(other, {"c.py": "3", "junk": "x"})
    (other / ".gitignore").write_text("junk\n")
    git(other, "init", "-q")
    git(other, "add", ".")
    git(other, "commit", "-qm", "first")
    git(repository, "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(other), "library")
    (repository / "link").symlink_to(repository / "sub")
    git(repository, "add", "link")
    files = worktree.read_tree(str(repository)).files
    assert {"library/c.py", "link/b.py"} <= set(files)
    assert "library/junk" not in files


def test_folder_without_git_leaves_out_usual_names(tmp_path: Path):
    write(tmp_path, {"a.py": "1", "sub/b.py": "2", "sub/__pycache__/b": "", "node_modules/x": "", "env/lib/y.py": ""})
    write(tmp_path, {".venv/x": "", ".marin/store.json": ""})
    (tmp_path / "env" / "pyvenv.cfg").write_text("")
    (tmp_path / "dead").symlink_to(tmp_path / "nothing")
    assert worktree.read_tree(str(tmp_path)).files == ("a.py", "sub/b.py")


def test_equal_trees_are_equal_archives(repository: Path, tmp_path_factory: pytest.TempPathFactory):
    (repository / "a.py").chmod(0o755)
    archives = []
    for _ in range(2):
        archives.append(
            worktree.write_archive(worktree.read_tree(str(repository)), str(tmp_path_factory.mktemp("out")))
        )
        (repository / "a.py").touch()
    assert Path(archives[0]).read_bytes() == Path(archives[1]).read_bytes()
    with zipfile.ZipFile(archives[0]) as archive:
        assert archive.read("sub/b.py") == b"2"
        assert archive.getinfo("a.py").external_attr >> 16 & 0o111
        assert not archive.getinfo("sub/b.py").external_attr >> 16 & 0o111


def test_tree_that_is_too_large_names_the_largest_files(repository: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(worktree, "LIMIT_BYTES", 1000)
    write(repository, {"sub/model": "x" * 900, "large": "x" * 500})
    with pytest.raises(ConfigurationError, match=r"too large to send: 1\.4 kB, at most 1\.0 kB") as caught:
        worktree.read_tree(str(repository))
    assert "sub/model (900 B), large (500 B)" in caught.value.where
    assert ".gitignore" in caught.value.hint


def test_tree_of_too_many_files_is_not_listed_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(worktree, "LIMIT_FILES", 3)
    write(tmp_path, {"a": "", "b": "", "c": "", "d": "", "e": ""})
    with pytest.raises(ConfigurationError, match="at least 4 files"):
        worktree.read_tree(str(tmp_path))


def test_folders_in_the_tree_are_relative_for_workers(tmp_path: Path):
    (tmp_path / "sub").mkdir()
    folders = [str(tmp_path / "sub"), str(tmp_path), "/elsewhere", str(tmp_path)]
    assert worktree.relative_folders(folders, str(tmp_path)) == ["sub", ".", "/elsewhere"]
    assert worktree.relative_folders(folders[:1], None) == folders[:1]


def test_name_that_is_no_utf8_is_refused_by_name(tmp_path: Path):
    Path(os.fsdecode(bytes(tmp_path) + b"/b\xff.txt")).write_text("x")
    with pytest.raises(ConfigurationError, match=r"b\\xff.txt.* is no UTF-8") as refused:
        worktree.read_tree(str(tmp_path))
    assert "rename the file" in refused.value.hint
