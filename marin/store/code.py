"""Code as it was: the source of every user's step that made a result, so that differences can be shown for ever.

Invariant: it is text for people; nothing in a store is executed. The definitions that count lie under the code digest.
Whole modules hold more than counts, so one digest stands for many texts of them: each result names its own set.
"""

from collections.abc import Mapping

from marin import fs
from marin.base.json import Json, dumps
from marin.store import layout, records
from marin.store.texts import digest_of, keep_text, kept_texts

KIND = "code"
MODULES_KIND = "modules"


def write_definitions(store_url: str, digest: str, definitions: Mapping[str, str]) -> None:
    """Store the text of each definition under the code digest, once."""
    url = _record_url(store_url, digest)
    if not fs.exists(url):
        record: dict[str, Json] = {"digest": digest, "definitions": definitions}
        fs.create(url, records.encode(KIND, record))


def write_modules(store_url: str, modules: Mapping[str, str]) -> str:
    """Store each module's text and their set, once; return the digest of the set."""
    named: dict[str, Json] = {name: digest_of(text) for name, text in modules.items()}
    digest = digest_of(dumps(named))
    url = _set_url(store_url, digest)
    if not fs.exists(url):
        for text in modules.values():
            keep_text(_module_url(store_url, digest_of(text)), text)
        fs.create(url, records.encode(MODULES_KIND, {"digest": digest, "modules": named}))
    return digest


def read_definitions(store_url: str, digest: str) -> Mapping[str, str] | None:
    """Return definition to its text; None when they were not kept."""
    record = records.load(_record_url(store_url, digest), KIND)
    return record["definitions"] if record is not None and record["digest"] == digest else None


def read_modules(store_url: str, digest: str) -> Mapping[str, str] | None:
    """Return module to its whole text, without those that are no longer there; None when they were not kept."""
    record = records.load(_set_url(store_url, digest), MODULES_KIND)
    if record is None or record["digest"] != digest:
        return None
    urls = {name: _module_url(store_url, text_digest) for name, text_digest in record["modules"].items()}
    texts = kept_texts({urls[name]: text_digest for name, text_digest in record["modules"].items()})
    return {name: texts[url] for name, url in urls.items() if url in texts}


def _record_url(store_url: str, digest: str) -> str:
    return fs.join(layout.code_folder(store_url), f"{digest[: layout.PREFIX_HEX]}.json")


def _set_url(store_url: str, digest: str) -> str:
    return fs.join(layout.code_folder(store_url), "sets", f"{digest[: layout.PREFIX_HEX]}.json")


def _module_url(store_url: str, digest: str) -> str:
    return fs.join(layout.code_folder(store_url), "modules", f"{digest[: layout.PREFIX_HEX]}.py")
