"""Texts under their own digest: each is kept once in a store and never replaced.

Invariant: a text whose bytes do not have the digest that it is asked for by is not believed. The empty text is known
without being kept, for no file of a store is empty.
"""

import hashlib
import logging
from collections.abc import Mapping

from marin import fs

log = logging.getLogger(__name__)

_EMPTY = hashlib.sha256(b"").hexdigest()


def digest_of(text: str) -> str:
    """Return the sha256 digest that a text is kept under."""
    return hashlib.sha256(_encoded(text)).hexdigest()


def keep_text(url: str, text: str) -> None:
    """Keep a text, unless it is kept already."""
    if text and not fs.exists(url):
        fs.create(url, _encoded(text))


def kept_text(url: str, digest: str) -> str | None:
    """Return the text of a digest; None when it was not kept."""
    return kept_texts({url: digest}).get(url)


def kept_texts(digests: Mapping[str, str]) -> dict[str, str]:
    """Return the text at each URL, without those that were not kept."""
    stored = fs.read_many(url for url, digest in digests.items() if digest != _EMPTY)
    found = {url: "" for url, digest in digests.items() if digest == _EMPTY}
    for url, data in stored.items():
        if hashlib.sha256(data).hexdigest() == digests[url]:
            found[url] = data.decode("utf-8", "surrogatepass")
        else:
            log.warning("%s does not have the digest in its name; it is passed over", url)
    return found


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
