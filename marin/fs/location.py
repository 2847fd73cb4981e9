"""URLs: local paths and whatever fsspec reaches, as plain text.

Invariant: a normalised URL is an absolute local path (`/a/b`) or `protocol://...`, without a trailing slash. This
is the only room that knows fsspec; listing caches are off, because a record that another host has just written
must be seen.
"""

import functools
import os
from pathlib import Path
from typing import Any, NamedTuple

import fsspec

from marin.base.errors import ConfigurationError
from marin.base.lazy import LazyModule
from marin.fs.patience import patience

Filesystem = Any  # fsspec has no types
_S3FS = LazyModule("s3fs.core")
_BOTOCORE_ERRORS = LazyModule("botocore.exceptions")

REMOTE_CONNECTIONS = 256
"""How many requests to one remote store are under way at once; botocore alone would let 10 through."""

S3_PATIENT_TRIES = 12
"""Of one request: s3fs waits 0.1 s and 1.7 times as long each time, 15 s at most; a minute in all."""


def normalise(url: str | os.PathLike[str]) -> str:
    """Return `url` as an absolute local path or as `protocol://...`, without a trailing slash."""
    text = os.fspath(url)
    if "\0" in text:
        raise ConfigurationError(f"{text!r} is no path: it holds a NUL", hint="check how the path was put together")
    if text.startswith("file://"):
        text = text.removeprefix("file://")
    if is_local(text):
        return os.path.abspath(os.path.expanduser(text))
    return text.rstrip("/")


def join(url: str, *parts: str) -> str:
    """Return `url` with the parts below it."""
    return "/".join([url.rstrip("/"), *parts])


def is_local(url: str) -> bool:
    """Whether the URL is a path of this machine."""
    return "://" not in url


def local_path(url: str) -> Path | None:
    """Return the path of a local URL, for memory maps; None for anything else."""
    return Path(url) if is_local(url) else None


class Remote(NamedTuple):
    """A file system and the path by which it knows a URL."""

    filesystem: Filesystem
    path: str


def remote(url: str) -> Remote:
    """Return the fsspec file system of a URL and its path there; ConfigurationError if nothing knows the protocol."""
    protocol = url.split("://", 1)[0]
    filesystem = _filesystem(protocol, os.getpid(), patience() > 0)
    return Remote(filesystem, filesystem._strip_protocol(url))


@functools.cache
def _filesystem(protocol: str, process: int, is_patient: bool) -> Filesystem:
    # One instance a process: clients of object stores do not survive a fork.
    options: dict[str, Any] = {"use_listings_cache": False, "skip_instance_cache": protocol != "memory"}
    if protocol in ("s3", "s3a"):
        configured = fsspec.config.conf.get(protocol, {}).get("config_kwargs", {})
        # s3fs sends a request again, and so do we; a third who does makes ten minutes of one where nothing answers.
        own = {"max_pool_connections": REMOTE_CONNECTIONS, "retries": {"total_max_attempts": 1}}
        options["config_kwargs"] = {**own, **configured}
    try:
        filesystem = fsspec.filesystem(protocol, **options)
    except (ValueError, ImportError) as error:
        raise ConfigurationError(
            f"nothing here can read `{protocol}://`: {error}",
            where=f"{protocol}://",
            hint="install the extra for it, such as `pip install marin[s3]`, or use a local path",
        ) from error
    if protocol in ("s3", "s3a"):
        _S3FS.set_custom_error_handler(_is_worth_another_request)
        if is_patient:
            filesystem.retries = S3_PATIENT_TRIES
    return filesystem


def _is_worth_another_request(error: Exception) -> bool:
    """Whether s3fs sends a request again; a part of a stream cannot be sent again from out here."""
    answer = getattr(error, "response", {}).get("ResponseMetadata", {})
    status = answer.get("HTTPStatusCode", 0)
    return status >= 500 or status == 429 or isinstance(error, _BOTOCORE_ERRORS.ConnectionError)
