"""Digests of files: blake3, or what a store that is read from says of a file itself.

A digest without a prefix is blake3. `sha256:` is how the Hugging Face hub names its large files, `git-sha1:` its small
ones, as git does: so a plan pins them without reading them, and whoever reads them checks what came.
"""

import hashlib
from typing import Any, Protocol

from blake3 import blake3

SHA256, GIT_SHA1 = "sha256:", "git-sha1:"


class Hasher(Protocol):
    """Takes a file's bytes in order."""

    def update(self, data: Any, /) -> object: ...  # Any: anything with a buffer

    def hexdigest(self) -> str: ...


def hasher_like(digest: str, size: int) -> Hasher:
    """Return a hasher of the kind that made `digest`, of a file of `size` bytes."""
    if digest.startswith(SHA256):
        return hashlib.sha256()
    if digest.startswith(GIT_SHA1):
        return hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    return blake3()


def is_digest(digest: str, hasher: Hasher) -> bool:
    """Whether a hasher of `hasher_like(digest, ...)` has come to it."""
    return digest.removeprefix(SHA256).removeprefix(GIT_SHA1) == hasher.hexdigest()
