"""Locks: the lists of distributions that were installed when artifacts were made, each kept once in a store.

Invariant: a list lies under its own digest and is never replaced; one whose bytes do not match it is not believed.
"""

import hashlib
import logging

from marin import fs
from marin.store import layout

log = logging.getLogger(__name__)


def write_lock(store_url: str, text: str) -> str:
    """Keep a list and return its digest."""
    digest = hashlib.sha256(text.encode()).hexdigest()
    url = _url(store_url, digest)
    if not fs.exists(url):
        fs.create(url, text.encode() or b"\n")  # records are never empty
    return digest


def read_lock(store_url: str, digest: str) -> str | None:
    """Return the list of a digest; None when it was not kept."""
    url = _url(store_url, digest)
    try:
        data = fs.read(url)
    except fs.NotFound:
        return None
    if hashlib.sha256(data).hexdigest() != digest:
        log.warning("%s does not have the digest in its name; it is passed over", url)
        return None
    return data.decode()


def _url(store_url: str, digest: str) -> str:
    return fs.join(layout.code_folder(store_url), "locks", f"{digest[: layout.PREFIX_HEX]}.txt")
