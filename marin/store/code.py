"""Code as it was: the source of every user's step that made a result, so that differences can be shown for ever.

Invariant: it is text for people; nothing in a store is executed. Modules are kept once for each text; a record under
the code digest names them and holds the text of each definition.
"""

import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass

from marin import fs
from marin.base.json import Json
from marin.store import layout, records

log = logging.getLogger(__name__)

KIND = "code"
_EMPTY = hashlib.sha256(b"").hexdigest()


@dataclass(frozen=True)
class Code:
    """What a code digest stands for."""

    definitions: Mapping[str, str]
    """Definition to its text."""
    modules: Mapping[str, str]
    """Module to its whole text; without those that are no longer there."""


def write_code(store_url: str, digest: str, *, definitions: Mapping[str, str], modules: Mapping[str, str]) -> None:
    """Store code under its digest, once."""
    if fs.exists(_record_url(store_url, digest)):
        return
    named = {name: hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest() for name, text in modules.items()}
    for name, text in modules.items():
        url = _module_url(store_url, named[name])
        if text and not fs.exists(url):
            fs.create(url, text.encode("utf-8", "surrogatepass"))
    record: dict[str, Json] = {"digest": digest, "definitions": definitions, "modules": named}
    fs.create(_record_url(store_url, digest), records.encode(KIND, record))


def read_code(store_url: str, digest: str) -> Code | None:
    """Return the code of a digest; None when it was not kept."""
    record = records.load(_record_url(store_url, digest), KIND)
    if record is None or record.get("digest") != digest:
        return None
    modules = {name: _module(_module_url(store_url, named), named) for name, named in record["modules"].items()}
    return Code(record["definitions"], {name: text for name, text in modules.items() if text is not None})


def _module(url: str, digest: str) -> str | None:
    if digest == _EMPTY:
        return ""
    try:
        data = fs.read(url)
    except fs.NotFound:
        return None
    if hashlib.sha256(data).hexdigest() != digest:
        log.warning("%s does not have the digest in its name; it is passed over", url)
        return None
    return data.decode("utf-8", "surrogatepass")


def _record_url(store_url: str, digest: str) -> str:
    return fs.join(layout.code_folder(store_url), f"{digest[: layout.PREFIX_HEX]}.json")


def _module_url(store_url: str, digest: str) -> str:
    return fs.join(layout.code_folder(store_url), "modules", f"{digest[: layout.PREFIX_HEX]}.py")
