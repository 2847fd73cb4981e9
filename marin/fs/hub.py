"""The Hugging Face hub as fsspec's `hf://` has it: branches become commits, listings tell digests.

Invariant: what is listed is of one commit, which the URLs name, so that a branch that moves between the plan and the
reading moves nothing. Access tokens and the endpoint are huggingface_hub's own business: HF_TOKEN, HF_ENDPOINT.
"""

import re
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from marin.base.errors import ConfigurationError, InputError
from marin.base.lazy import LazyModule
from marin.fs.faults import attempt
from marin.fs.hashing import GIT_SHA1, SHA256

_HUB = LazyModule("huggingface_hub")
_ERRORS = LazyModule("huggingface_hub.errors")

PROTOCOL = "hf://"
_COMMIT = re.compile("[0-9a-f]{40}")
_KINDS = {"datasets": "dataset", "spaces": "space", "models": "model"}


class HubPath(NamedTuple):
    """A path in a repository of the hub; `revision` empty: its default branch."""

    kind: str
    repo: str
    revision: str
    path: str


def parse_hub_url(url: str) -> HubPath:
    """Return the parts of `hf://datasets/OWNER/NAME[@REVISION]/PATH`; ConfigurationError when it is no such URL."""
    parts = url.removeprefix(PROTOCOL).split("/")
    kind = parts.pop(0) if parts[0] in _KINDS else "models"
    if len(parts) < 2 or not all(parts[:2]):
        raise ConfigurationError(
            f"{url!r} names no repository", where=url, hint="write hf://datasets/OWNER/NAME@REVISION/data/*.parquet"
        )
    name, _, revision = parts[1].partition("@")
    rest = parts[2:]
    if revision == "refs" and len(rest) >= 2:  # refs/convert/parquet, refs/pr/7
        revision, rest = "/".join(["refs", *rest[:2]]), rest[2:]
    return HubPath(kind, f"{parts[0]}/{name}", unquote(revision), "/".join(rest))


def at_commit(url: str) -> str:
    """Return a URL or pattern with the commit that its revision is now; InputError when there is none."""
    if url.startswith("hf://buckets/"):
        return url  # no revisions, hence nothing to hold on to but what is listed
    place = parse_hub_url(url)
    is_commit = _COMMIT.fullmatch(place.revision)
    commit = place.revision if is_commit else attempt(lambda: _commit_of(place, url), url)
    return f"{PROTOCOL}{place.kind}/{place.repo}@{quote(commit, safe='')}/{place.path}".rstrip("/")


def _commit_of(place: HubPath, url: str) -> str:
    kind, revision = _KINDS[place.kind], place.revision or None
    try:
        return str(_HUB.HfApi().repo_info(place.repo, repo_type=kind, revision=revision, timeout=30).sha)
    except ImportError as error:
        hint = "install the extra for it: `pip install marin[hub]`"
        raise ConfigurationError(f"nothing here can read `{PROTOCOL}`: {error}", where=url, hint=hint) from error
    except _ERRORS.HFValidationError as error:
        raise ConfigurationError(f"{place.repo!r} names no repository: {error}", where=url, hint="mend it") from error
    except _ERRORS.RevisionNotFoundError as error:
        hint = "give a branch, a tag or a commit that it has"
        raise InputError(f"{place.repo} has no revision {place.revision!r}", where=url, hint=hint) from error
    except _ERRORS.RepositoryNotFoundError as error:
        raise InputError(
            f"the hub shows no {kind} {place.repo}",
            where=url,
            hint="check its name; if it is private or gated, give HF_TOKEN of an account that may read it",
        ) from error


def digest_told(info: dict[str, Any]) -> str:  # Any: fsspec's info
    """Return the digest that the hub's listing tells of a file; empty in other stores."""
    large = info.get("lfs")
    if large:
        return f"{SHA256}{large['sha256']}"
    return f"{GIT_SHA1}{info['blob_id']}" if info.get("blob_id") else ""
