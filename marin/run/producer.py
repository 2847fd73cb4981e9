"""Who makes an artifact: user, host, commit and versions, for manifests and run records; never part of a key."""

import getpass
import importlib.metadata
import platform
import socket
import subprocess

from marin.store import Producer

DISTRIBUTIONS = ("marin", "ray", "torch", "numpy", "pyarrow", "tokenizers")
GIT_SECONDS = 5.0


def this_producer() -> Producer:
    """Return user, host, git commit (None outside a repository), whether the tree was dirty, and versions."""
    commit = _git("rev-parse", "HEAD")
    versions = {"python": platform.python_version()}
    for name in DISTRIBUTIONS:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    dirty = bool(commit and _git("status", "--porcelain", "--untracked-files=normal"))
    return Producer(_user(), socket.gethostname(), commit, dirty, versions)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container whose uid has no name
        return "unknown"


def _git(*arguments: str) -> str | None:
    try:
        answer = subprocess.run(
            ["git", *arguments],
            capture_output=True,
            text=True,
            timeout=GIT_SECONDS,
            check=True,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()
