"""What git answers about a folder, where there is git and a repository; read only.

Invariant: it takes no lock and asks nobody, so that a run disturbs no commit and never waits for a person.
"""

import os
import subprocess


def ask_git(folder: str, *arguments: str, seconds: float) -> bytes | None:
    """Return what a git command prints; None where it fails, git is missing, or it takes longer than `seconds`."""
    try:
        answer = subprocess.run(
            ["git", "-C", folder, *arguments],
            capture_output=True,
            timeout=seconds,
            check=True,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout


def top_of(folder: str, *, seconds: float) -> str | None:
    """Return the top of the working tree that holds a folder; None outside a repository."""
    top = ask_git(folder, "rev-parse", "--show-toplevel", seconds=seconds)
    return os.fsdecode(top).rstrip("\n") if top else None
