"""The working tree as one archive: what travels to a cluster whose nodes do not see this folder.

Invariant: equal files give equal archives, so that what a cluster has is not sent again. Ignored files never travel:
git's own rules in a repository, a list of usual names elsewhere; nor does a store.
"""

import heapq
import os
import stat
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from marin.base.errors import ConfigurationError
from marin.base.units import format_size
from marin.run.git import ask_git, top_of

LIMIT_BYTES = 100_000_000
LIMIT_FILES = 50_000
GIT_SECONDS = 60.0
_IGNORED = frozenset(
    {".git", ".hg", ".svn", ".venv", "venv", "node_modules", "__pycache__", ".marin", ".mypy_cache", ".ruff_cache"}
    | {".pytest_cache", ".ipynb_checkpoints", ".tox", ".nox", ".DS_Store", ".hypothesis", ".cache"}
)
_LARGEST = 5
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the first that an archive can say


@dataclass(frozen=True)
class Tree:
    """A folder and what of it travels."""

    root: str
    files: tuple[str, ...]
    """Paths below the root, sorted."""
    bytes: int


def find_root(folder: str) -> str:
    """Return the top of the git repository that holds a folder, else the folder itself."""
    return top_of(folder, seconds=GIT_SECONDS) or os.path.abspath(folder)


def read_tree(root: str) -> Tree:
    """Return what of a working tree travels; ConfigurationError, naming the largest files, if it is too much."""
    sizes: dict[str, int] = {}
    total = 0
    for path in _listed(root):
        _check_name(root, path)
        size = _size(os.path.join(root, path))
        if size is not None and path not in sizes:
            sizes[path] = size
            total += size
        if len(sizes) > LIMIT_FILES:
            break
    if total > LIMIT_BYTES or len(sizes) > LIMIT_FILES:
        raise _too_large(root, sizes, total)
    return Tree(root, tuple(sorted(sizes)), total)


def _check_name(root: str, path: str) -> None:
    """Raise ConfigurationError for a name that is no UTF-8: an archive cannot say it."""
    try:
        path.encode()
    except UnicodeEncodeError as error:
        raise ConfigurationError(
            f"the name of {os.fsencode(path)!r} is no UTF-8, and cannot be sent",
            where=root,
            hint="rename the file, or list it in .gitignore",
        ) from error


def write_archive(tree: Tree, folder: str) -> str | None:
    """Write the tree as a zip file into a folder and return its path; None for a tree without files."""
    if not tree.files:
        return None
    path = os.path.join(folder, "tree.zip")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name in tree.files:
            try:
                content = Path(tree.root, name).read_bytes()
                mode = stat.S_IMODE(os.stat(os.path.join(tree.root, name)).st_mode) & 0o755
            except FileNotFoundError:
                continue  # deleted since it was listed
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.external_attr = (stat.S_IFREG | mode) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, content)
    return path


def relative_folders(folders: Sequence[str], root: str | None) -> list[str]:
    """Return folders as a process sees them that starts in a copy of the tree: those below its root are relative."""
    if root is None:
        return list(folders)
    top = os.path.realpath(root)
    found = []
    for folder in folders:
        real = os.path.realpath(folder)
        found.append(os.path.relpath(real, top) if f"{real}/".startswith(f"{top}/") else folder)
    return list(dict.fromkeys(found))


def _listed(root: str) -> Iterator[str]:
    """Yield the files of a tree: tracked, and untracked that are not ignored; all but usual names without git."""
    tracked = ask_git(root, "ls-files", "-z", "--cached", seconds=GIT_SECONDS)
    others = ask_git(root, "ls-files", "-z", "--others", "--exclude-standard", seconds=GIT_SECONDS)
    if tracked is None or others is None:
        yield from _walked(root, "")
        return
    for name in _names(tracked):
        place = os.path.join(root, name)
        if not os.path.isdir(place):
            yield name
        elif os.path.islink(place):  # an archive has no links: their content goes, that of links in it does not
            yield from (f"{name}/{below}" for below in _walked(place, ""))
        elif os.path.exists(os.path.join(place, ".git")):  # a submodule; one that is not fetched has nothing
            yield from (f"{name}/{below}" for below in _listed(place))
    for name in _names(others):
        if name.endswith("/"):  # a repository in the repository
            yield from (f"{name}{below}" for below in _listed(os.path.join(root, name)))
        elif not _IGNORED & set(name.split("/")) and not _in_store(root, name):
            yield name


def _names(output: bytes) -> list[str]:
    return [os.fsdecode(name) for name in output.split(b"\0") if name]


def _walked(root: str, below: str) -> Iterator[str]:
    with os.scandir(os.path.join(root, below)) as children:
        for child in sorted(children, key=lambda each: each.name):
            path = f"{below}/{child.name}" if below else child.name
            if child.name in _IGNORED or child.name.endswith((".pyc", ".egg-info")):
                continue
            if child.is_dir(follow_symlinks=False):
                if not os.path.exists(os.path.join(child.path, "store.json")) and not _is_environment(child.path):
                    yield from _walked(root, path)
            else:
                yield path


def _is_environment(folder: str) -> bool:
    return os.path.exists(os.path.join(folder, "pyvenv.cfg"))


def _in_store(root: str, name: str) -> bool:
    """Whether a folder above a file is a store, or a virtual environment."""
    parts = name.split("/")[:-1]
    above = [os.path.join(root, *parts[: number + 1]) for number in range(len(parts))]
    return any(os.path.exists(os.path.join(folder, "store.json")) or _is_environment(folder) for folder in above)


def _size(path: str) -> int | None:
    """Return the size of a file, through a link; None for what is no file, such as a pipe or a dead link."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def _too_large(root: str, sizes: dict[str, int], total: int) -> ConfigurationError:
    largest = heapq.nlargest(_LARGEST, sizes.items(), key=lambda item: item[1])
    named = ", ".join(f"{name} ({format_size(size)})" for name, size in largest)
    many = f"at least {len(sizes):,} files" if len(sizes) > LIMIT_FILES else f"{format_size(total)}"
    return ConfigurationError(
        f"the working tree is too large to send: {many}, at most {format_size(LIMIT_BYTES)} and {LIMIT_FILES:,} files",
        where=f"{root}; the largest are {named}",
        hint="list data and outputs in .gitignore (in a git repository), or start in the folder that holds the code",
    )
