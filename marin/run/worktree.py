"""The working tree as one archive: what travels to a cluster whose nodes do not see this folder.

Invariant: equal files give equal archives, so that what a cluster has is not sent again. Ignored files never travel:
git's own rules in a repository, a list of usual names elsewhere; nor does a store. An archive has no links: one to what
travels becomes a copy of it, any other (out of the tree, to an ignored file, to nothing, in a circle) is left out.
"""

import bisect
import errno
import functools
import heapq
import logging
import os
import stat
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from marin.base.errors import ConfigurationError
from marin.base.units import format_size
from marin.run.git import ask_git, top_of

log = logging.getLogger(__name__)

LIMIT_BYTES = 100_000_000
LIMIT_FILES = 50_000
GIT_SECONDS = 60.0
_IGNORED = frozenset(
    {".git", ".hg", ".svn", ".venv", "venv", "node_modules", "__pycache__", ".marin", ".mypy_cache", ".ruff_cache"}
    | {".pytest_cache", ".ipynb_checkpoints", ".tox", ".nox", ".DS_Store", ".hypothesis", ".cache"}
)
_LARGEST = 5
_TOLD = 5
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the first that an archive can say


@dataclass(frozen=True)
class Tree:
    """A folder and what of it travels."""

    root: str
    files: tuple[str, ...]
    """Paths below the root, sorted."""
    bytes: int
    left_out: tuple[str, ...] = ()
    """What could not travel, each with the reason; ignored files are not told."""


def find_root(folder: str) -> str:
    """Return the top of the git repository that holds a folder, else the folder itself."""
    return top_of(folder, seconds=GIT_SECONDS) or os.path.abspath(folder)


def read_tree(root: str) -> Tree:
    """Return what of a working tree travels; ConfigurationError, naming the largest files, if it is too much."""
    sizes: dict[str, int] = {}
    links: dict[str, None] = {}
    left_out: dict[str, str] = {}
    top, real = os.path.realpath(root), functools.cache(os.path.realpath)
    for path in _listed(root):
        check_text(path, f"the name of {os.fsencode(path)!r}", root, "rename the file, or list it in .gitignore")
        place, folder = os.path.join(root, path), os.path.dirname(path)
        if real(os.path.join(root, folder)) != os.path.normpath(os.path.join(top, folder)):
            continue  # tracked, and now behind a link, which is listed itself
        if os.path.islink(place):
            links[path] = None
        elif (kind := _kind(place)) == "file":
            sizes[path] = os.lstat(place).st_size
        elif kind:
            left_out[path] = f"{path} is {kind}"
        if len(sizes) > LIMIT_FILES:
            break
    files = dict(sizes)
    behind = _Links(root, sizes, links, left_out)
    for link in links:
        for path, size in behind.copies(link):
            files[path] = size
            if len(files) > LIMIT_FILES:
                break
    total = sum(files.values())
    if total > LIMIT_BYTES or len(files) > LIMIT_FILES:
        raise _too_large(root, files, total)
    return Tree(root, tuple(sorted(files)), total, tuple(left_out.values()))


def warn_of_left_out(tree: Tree) -> None:
    """Tell what of a tree does not travel, and why."""
    for reason in tree.left_out[:_TOLD]:
        log.warning("not sent: %s", reason)
    if len(tree.left_out) > _TOLD:
        log.warning("not sent: %d more such files and links", len(tree.left_out) - _TOLD)


def check_text(text: str, named: str, where: str, hint: str) -> None:
    """Raise ConfigurationError for text that is no UTF-8: neither an archive nor Ray can say it."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ConfigurationError(f"{named} is no UTF-8, and cannot be sent", where=where, hint=hint) from error


class _Links:
    """What links of a tree stand for: copies of files that travel; what else they lead to is left out."""

    def __init__(self, root: str, sizes: Mapping[str, int], links: Mapping[str, None], left_out: dict[str, str]):
        self._root = root
        self._top = os.path.realpath(root)
        self._sizes = sizes
        self._paths = sorted([*sizes, *links])
        self._left_out = left_out

    def copies(self, link: str, name: str = "", above: tuple[str, ...] = ()) -> Iterator[tuple[str, int]]:
        """Yield the paths, with sizes, at which files travel for a link that the archive has as `name`."""
        name, above = name or link, (*above, os.path.dirname(link))
        place = os.path.join(self._root, link)
        target = os.path.realpath(place)
        below = os.path.relpath(target, self._top)
        try:
            is_folder = stat.S_ISDIR(os.stat(place).st_mode)
        except OSError as error:
            leads = "in a circle" if error.errno == errno.ELOOP else f"to nothing: {os.readlink(place)}"
            self._left_out[name] = f"{name} leads {leads}"
            return
        if below == os.pardir or below.startswith(f"{os.pardir}/"):
            instead = "copy it here, or use that path if every node has it"
            self._left_out[name] = f"{name} leads out of the working tree, to {target}; {instead}"
        elif below in self._sizes:
            yield name, self._sizes[below]
        elif is_folder and any(below == os.curdir or f"{each}/".startswith(f"{below}/") for each in above):
            self._left_out[name] = f"{name} leads in a circle, to {target}"
        elif is_folder and (inside := self._below(below)):
            for path in inside:
                copy = f"{name}{path[len(below) :]}"
                if path in self._sizes:
                    yield copy, self._sizes[path]
                elif len(self._left_out) <= LIMIT_FILES:
                    yield from self.copies(path, copy, above)
        else:
            self._left_out[name] = f"{name} leads to what does not travel: {target}"

    def _below(self, folder: str) -> list[str]:
        """Return the files and links below a folder."""
        start = f"{folder}/"
        first, after = bisect.bisect_left(self._paths, start), bisect.bisect_left(self._paths, f"{folder}0")
        return self._paths[first:after]  # "0" is the letter after "/"


def write_archive(tree: Tree, folder: str) -> str | None:
    """Write the tree as a zip file into a folder and return its path; None for a tree without files."""
    if not tree.files:
        return None
    path = os.path.join(folder, "tree.zip")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name in tree.files:
            place = os.path.join(tree.root, name)
            if _kind(os.path.realpath(place)) != "file":
                continue  # deleted since it was listed, or a pipe now, which nobody may ever write
            content = Path(place).read_bytes()
            mode = stat.S_IMODE(os.stat(place).st_mode) & 0o755
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
        if os.path.islink(place) or not os.path.isdir(place):
            yield name
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


_KINDS = {stat.S_IFREG: "file", stat.S_IFDIR: "", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}


def _kind(path: str) -> str:
    """Return `file`, or what else is there, such as `a pipe`; empty for a folder and for nothing."""
    try:
        return _KINDS.get(stat.S_IFMT(os.lstat(path).st_mode), "a device")
    except (FileNotFoundError, NotADirectoryError):
        return ""


def _too_large(root: str, sizes: dict[str, int], total: int) -> ConfigurationError:
    largest = heapq.nlargest(_LARGEST, sizes.items(), key=lambda item: item[1])
    named = ", ".join(f"{name} ({format_size(size)})" for name, size in largest)
    many = f"at least {len(sizes):,} files" if len(sizes) > LIMIT_FILES else f"{format_size(total)}"
    return ConfigurationError(
        f"the working tree is too large to send: {many}, at most {format_size(LIMIT_BYTES)} and {LIMIT_FILES:,} files",
        where=f"{root}; the largest are {named}",
        hint="list data and outputs in .gitignore (in a git repository), or start in the folder that holds the code",
    )
