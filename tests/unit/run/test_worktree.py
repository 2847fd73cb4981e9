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


def contents(tree: worktree.Tree, folder: Path) -> dict[str, bytes]:
    archive = worktree.write_archive(tree, str(folder))
    assert archive is not None
    with zipfile.ZipFile(archive) as opened:
        return {name: opened.read(name) for name in opened.namelist()}


@pytest.fixture(params=["git", "plain"])
def linked(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A tree in a folder beside which something else lies, as a repository and as a plain folder."""
    tree = tmp_path / "tree"
    write(tree, {"a.py": "1", "sub/b.py": "2", "sub/deep/c.py": "3", ".venv/secret": "ignored"})
    write(tmp_path, {"elsewhere/key": "secret", "elsewhere/more/d": "secret"})
    if request.param == "git":
        (tree / ".gitignore").write_text(".venv\n")
        git(tree, "init", "-q")
    return tree


def test_link_to_what_travels_becomes_a_copy_of_it(linked: Path, tmp_path_factory: pytest.TempPathFactory):
    (linked / "file.py").symlink_to("a.py")
    (linked / "folder").symlink_to(linked / "sub")
    (linked / "sub" / "again.py").symlink_to("../file.py")
    (linked / "other").mkdir()
    (linked / "other" / "deep").symlink_to("../sub/deep")
    tree = worktree.read_tree(str(linked))
    assert tree.left_out == ()
    found = contents(tree, tmp_path_factory.mktemp("out"))
    found.pop(".gitignore", None)
    assert found == {
        **{"a.py": b"1", "sub/b.py": b"2", "sub/deep/c.py": b"3", "file.py": b"1", "sub/again.py": b"1"},
        **{"folder/b.py": b"2", "folder/deep/c.py": b"3", "folder/again.py": b"1", "other/deep/c.py": b"3"},
    }
    assert tree.bytes == sum(map(len, found.values())) + len(".venv\n") * (linked / ".gitignore").exists()


@pytest.mark.parametrize("target", ["elsewhere", "elsewhere/key", "elsewhere/more"])
def test_link_out_of_the_tree_is_left_out_and_named(linked: Path, tmp_path: Path, target: str, caplog):
    (linked / "sub" / "out").symlink_to(f"../../{target}")
    tree = worktree.read_tree(str(linked))
    assert not [name for name in tree.files if "out" in name]
    (said,) = tree.left_out
    assert said.startswith(f"sub/out leads out of the working tree, to {tmp_path / target}; copy it here")
    worktree.warn_of_left_out(tree)
    assert f"not sent: {said}" in caplog.text


def test_what_leads_nowhere_or_is_no_file_is_left_out_and_named(linked: Path, tmp_path: Path):
    (linked / "dead").symlink_to("nothing")
    (linked / "self").symlink_to("self")
    (linked / "up").symlink_to(".")
    (linked / "sub" / "loop").symlink_to(linked / "sub")
    (linked / "secret").symlink_to(".venv/secret")
    (linked / "environment").symlink_to(".venv")
    os.mkfifo(linked / "pipe")
    (linked / "piped").symlink_to("pipe")
    tree = worktree.read_tree(str(linked))
    assert set(tree.files) - {".gitignore"} == {"a.py", "sub/b.py", "sub/deep/c.py"}
    told = set(tree.left_out) - {"pipe is a pipe"}  # git does not list it
    assert told == {
        "dead leads to nothing: nothing",
        "self leads in a circle",
        f"up leads in a circle, to {linked}",
        f"sub/loop leads in a circle, to {linked / 'sub'}",
        f"secret leads to what does not travel: {linked / '.venv/secret'}",
        f"environment leads to what does not travel: {linked / '.venv'}",
        f"piped leads to what does not travel: {linked / 'pipe'}",
    }


def test_folders_that_lead_to_each_other_end(linked: Path):
    write(linked, {"one/x": "", "two/y": ""})
    (linked / "one" / "two").symlink_to("../two")
    (linked / "two" / "one").symlink_to("../one")
    tree = worktree.read_tree(str(linked))
    assert {"one/x", "two/y", "one/two/y", "two/one/x"} <= set(tree.files)
    assert {said.split(",")[0] for said in tree.left_out} == {
        "one/two/one leads in a circle",
        "two/one/two leads in a circle",
    }


def test_tracked_folder_that_is_a_link_now_sends_nothing_from_elsewhere(repository: Path, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    write(elsewhere, {"b.py": "secret"})
    (repository / "sub" / "b.py").unlink()
    (repository / "sub").rmdir()
    (repository / "sub").symlink_to(elsewhere)
    tree = worktree.read_tree(str(repository))
    assert tree.files == (".gitignore", "a.py")
    assert "sub leads out of the working tree" in tree.left_out[0]


def test_tracked_file_that_is_a_pipe_now_does_not_hang(repository: Path, tmp_path_factory: pytest.TempPathFactory):
    tree = worktree.read_tree(str(repository))
    (repository / "a.py").unlink()
    os.mkfifo(repository / "a.py")
    assert "a.py is a pipe" in worktree.read_tree(str(repository)).left_out
    assert "a.py" not in contents(tree, tmp_path_factory.mktemp("out"))


def test_many_left_out_are_told_in_a_few_lines(tmp_path: Path, caplog):
    for number in range(9):
        (tmp_path / f"dead{number}").symlink_to("nothing")
    worktree.warn_of_left_out(worktree.read_tree(str(tmp_path)))
    assert len(caplog.messages) == 6
    assert caplog.messages[-1] == "not sent: 4 more such files and links"


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
