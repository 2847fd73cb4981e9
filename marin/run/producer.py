"""Who makes an artifact: user, host, commit, what differed from it, and what was installed; never part of a key.

Two depths, because most runs make nothing: `this_producer` is what every run record holds and costs one call of git;
`detailed` adds the digests of the uncommitted changes and of the installed distributions, once something will run.
"""

import functools
import getpass
import hashlib
import importlib.metadata
import os
import platform
import re
import socket
from collections.abc import Iterator
from dataclasses import replace

from marin import fs
from marin.base.json import dumps
from marin.run.git import ask_git, top_of
from marin.store import Producer, Submission, write_lock

DISTRIBUTIONS = ("marin", "ray", "torch", "numpy", "pyarrow", "tokenizers")
GIT_SECONDS = 5.0
HASHED_BYTES = 64 << 20
# Without whatever the user's configuration would make of a diff, so that equal changes give equal digests.
_PLAIN_DIFF = (
    "--binary",
    "--full-index",
    "--no-color",
    "--no-ext-diff",
    "--no-textconv",
    "--no-renames",
    "--src-prefix=a/",
    "--dst-prefix=b/",
    "--unified=3",
    "--inter-hunk-context=0",
    "--diff-algorithm=myers",
)


def this_producer() -> Producer:
    """Return user, host, working folder, git commit (None outside a repository), and versions."""
    commit = ask_git(".", "rev-parse", "HEAD", seconds=GIT_SECONDS)
    versions = {"python": platform.python_version()}
    for name in DISTRIBUTIONS:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    text = commit.decode().strip() if commit else None
    return Producer(this_user(), socket.gethostname(), text, versions=versions, folder=os.getcwd())


def detailed(producer: Producer, store_url: str, *, hashed_bytes: int = HASHED_BYTES) -> Producer:
    """Return the producer with what differed from its commit and what was installed; the list is kept in the store.

    Untracked files are read up to `hashed_bytes` together; of those beyond, the size counts.
    """
    dirty, diff = _difference(store_url, hashed_bytes) if producer.commit else (False, None)
    text = installed()
    return replace(producer, dirty=dirty, diff=diff, lock=write_lock(store_url, text))


def submitted(here: Producer, submission: Submission | None) -> Producer:
    """Return the producer of a run that was submitted: who sent it and the commit of the tree that was sent."""
    if submission is None:
        return here
    sent = submission.producer
    user, commit, diff = (sent.get(name) for name in ("user", "commit", "diff"))
    return replace(
        here,
        user=str(user or here.user),
        commit=str(commit) if commit else None,
        dirty=bool(sent.get("dirty")),
        diff=str(diff) if diff else None,
    )


@functools.cache
def installed() -> str:
    """Return `name==version` of each installed distribution, sorted, one a line; read once for each process."""
    found: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        name, version = _named(distribution)
        if name:  # a folder that an interrupted installation left has none
            # The first on the path is the one that is imported.
            found.setdefault(re.sub(r"[-_.]+", "-", name).lower(), version)
    return "".join(sorted(f"{name}=={version}\n" for name, version in found.items()))


def _named(distribution: importlib.metadata.Distribution) -> tuple[str, str]:
    """Return what a distribution says its name and version are; empty where it does not.

    `Distribution.metadata` parses all of a file whose rest may be a long description: five times the time.
    """
    text = distribution.read_text("METADATA") or distribution.read_text("PKG-INFO") or ""
    head = text.partition("\n\n")[0]
    name, version = (re.search(rf"^{field}:[ \t]*(.+?)[ \t\r]*$", head, re.MULTILINE) for field in ("Name", "Version"))
    return name[1] if name else "", version[1] if version else ""


def _difference(store_url: str, hashed_bytes: int) -> tuple[bool, str | None]:
    """Return whether the working tree differs from its commit, and the digest of how; None if git does not say."""
    root = top_of(".", seconds=GIT_SECONDS) or "."
    diff = ask_git(root, "diff", "HEAD", *_PLAIN_DIFF, seconds=GIT_SECONDS)
    listed = ask_git(root, "ls-files", "--others", "--exclude-standard", "-z", seconds=GIT_SECONDS)
    if diff is None or listed is None:
        return True, None
    names = sorted(os.fsdecode(name) for name in listed.split(b"\0") if name)
    names = [name for name in names if not os.path.join(root, name).startswith(f"{store_url}/")]
    if not diff and not names:
        return False, None
    untracked = [[name, content] for name, content in zip(names, _contents(root, names, hashed_bytes), strict=True)]
    record = dumps([hashlib.sha256(diff).hexdigest(), untracked])
    return True, hashlib.sha256(record.encode("utf-8", "surrogatepass")).hexdigest()


def _contents(root: str, names: list[str], left: int) -> Iterator[str]:
    """Yield what tells the content of each file: its digest, or its size where fewer bytes are `left`."""
    for name in names:
        path = os.path.join(root, name)
        try:
            size = os.path.getsize(path)
            if size > left or not os.path.isfile(path):
                yield str(size)
                continue
            left -= size
            yield fs.digest_file(path).digest
        except (OSError, fs.NotFound):  # it went away while we looked, or leads nowhere
            yield ""


def this_user() -> str:
    """Return the name of whoever runs this process."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container whose uid has no name
        return "unknown"
