"""Locks: the lists of distributions that were installed when artifacts were made, each kept once in a store."""

from marin import fs
from marin.store import layout
from marin.store.texts import digest_of, keep_text, kept_text


def write_lock(store_url: str, text: str) -> str:
    """Keep a list and return its digest."""
    digest = digest_of(text)
    keep_text(_url(store_url, digest), text)
    return digest


def read_lock(store_url: str, digest: str) -> str | None:
    """Return the list of a digest; None when it was not kept."""
    return kept_text(_url(store_url, digest), digest)


def _url(store_url: str, digest: str) -> str:
    return fs.join(layout.code_folder(store_url), "locks", f"{digest[: layout.PREFIX_HEX]}.txt")
