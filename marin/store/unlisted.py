"""Results that `marin gc` has unlisted: no hit finds them any more, and their files wait for a grace period.

    unlisted/artifacts/<step>/<fp16>-<8 hex>.json     the whole manifest, and when it was taken away
                             /<fp16>-<8 hex>.claim    create-only: who decides what becomes of it
    unlisted/shards/<gc>-<number>.json                many shard records at once

Invariant: the record is there before the manifest goes, and is written again after that, so that its age is never more
than the time since the last hit. A run that hit the result before, or wants it now, lists it again; whether that or the
deletion happens is decided by one create-only claim.
"""

import hashlib
import logging
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from marin import fs
from marin.base.json import Json
from marin.fs.aged import list_aged
from marin.store import layout, manifest, records
from marin.store.manifest import Manifest, placed
from marin.store.presence import present

log = logging.getLogger(__name__)

KIND = "unlisted"
SHARDS_KIND = "unlisted shards"
CLAIM_KIND = "claim"
GC, READER = "gc", "reader"
_POLLS, _POLL_SECONDS = 50, 0.1


@dataclass(frozen=True)
class Unlisted:
    """One result that was unlisted."""

    url: str
    data: bytes
    """The record as it is stored."""
    manifest: Manifest
    text: bytes
    """The manifest as it was stored."""
    complete: bool
    """Whether the manifest was certainly gone when the record was last written."""

    @property
    def key(self) -> tuple[str, str]:
        """Step and fingerprint."""
        return self.manifest.step, self.manifest.fingerprint


def unlist(root: str, committed: Manifest, text: bytes) -> None:
    """Take a manifest away, unless it is another one by now; the record lets readers bring it back."""
    url = _record_url(root, committed, text)
    fs.delete(_claim_url(url))  # of a killed process: the record that it was about is gone, for the manifest stands
    fs.replace(url, _encoded(committed, text, complete=False))
    fs.delete_unchanged(_manifest_url(root, committed.step, committed.fingerprint), text)
    fs.replace(url, _encoded(committed, text, complete=True))


def decode(data: bytes, *, url: str, root: str) -> Unlisted | None:
    """Return the record, or None with a warning when it cannot be believed."""
    record = records.decode(data, KIND, where=url)
    if record is None or not isinstance(record.get("manifest"), str):
        return None
    text = record["manifest"].encode("utf-8", "surrogatepass")
    committed = manifest.decode(text, where=url, root=root)
    return Unlisted(url, data, committed, text, bool(record.get("complete"))) if committed is not None else None


def recall(root: str, step: str, fingerprint: str, *, pause: Callable[[float], object] = time.sleep) -> Manifest | None:
    """Return a result that was unlisted, listed again; None when there is none, or its files have begun to go."""
    for found in of_result(root, step, fingerprint):
        if not _files_present(root, found.manifest):
            continue
        if _claim(found.url, READER):
            if not fs.exists(found.url):  # it was decided before
                fs.delete(_claim_url(found.url))
                continue
            relist(root, found)
        elif not _relisted_by_another(root, found, pause):
            continue
        return listed(root, step, fingerprint)
    # Somebody may have listed it again since the caller looked; its record of unlisting is gone then.
    again = listed(root, step, fingerprint)
    return again if again is not None and _files_present(root, again) else None


def unlisted_results(root: str) -> list[Unlisted]:
    """Return all results that were unlisted and whose files are still there."""
    urls = [file.url for file in list_aged(_folder(root)) if file.path.endswith(".json")]
    found = [decode(data, url=url, root=root) for url, data in fs.read_many(urls).items()]
    return [each for each in found if each is not None and _files_present(root, each.manifest)]


def peek(root: str, step: str, fingerprint: str) -> Manifest | None:
    """Return a result that was unlisted in a store that must not be written, while its files are there."""
    found = of_result(root, step, fingerprint)
    return next((each.manifest for each in found if _files_present(root, each.manifest)), None)


def relist(root: str, found: Unlisted) -> None:
    """Put a manifest back, unless another stands there, and forget that it was unlisted; needs the claim."""
    fs.create(_manifest_url(root, *found.key), found.text)
    fs.delete_unchanged(found.url, found.data)  # a gc may have unlisted it again already
    fs.delete(_claim_url(found.url))


def forget(found: Unlisted) -> bool:
    """Give a result up, so that its files may go; False when a reader has claimed it, or it has changed."""
    if not _claim(found.url, GC) and _claimant(found.url) != GC:  # one gc works at a time: such a claim is mine
        return False
    unchanged = fs.read_many([found.url]).get(found.url) == found.data
    if unchanged:
        fs.delete(found.url)
    fs.delete(_claim_url(found.url))
    return unchanged


def of_result(root: str, step: str, fingerprint: str) -> list[Unlisted]:
    """Return what was unlisted of one fingerprint."""
    folder = fs.join(_folder(root), step)
    prefix = fingerprint[: layout.PREFIX_HEX]
    names = [name for name in fs.list_folder(folder) if name.startswith(prefix) and name.endswith(".json")]
    stored = fs.read_many(fs.join(folder, name) for name in names)
    found = [decode(data, url=url, root=root) for url, data in stored.items()]
    return [each for each in found if each is not None and each.key == (step, fingerprint)]


def unlist_shards(root: str, name: str, texts: Mapping[str, bytes]) -> None:
    """Take shard records away, by shard fingerprint, so that no further hit finds them."""
    url = fs.join(layout.unlisted_folder(root), "shards", f"{name}.json")
    plain: dict[str, Json] = {key: text.decode("utf-8", "surrogatepass") for key, text in texts.items()}
    fs.replace(url, records.encode(SHARDS_KIND, {"records": plain, "at": _now(), "complete": False}))
    for key, text in texts.items():
        fs.delete_unchanged(shard_record_url(root, key), text)
    fs.replace(url, records.encode(SHARDS_KIND, {"records": plain, "at": _now(), "complete": True}))


def decode_shards(data: bytes, *, where: str) -> tuple[dict[str, bytes], bool] | None:
    """Return shard records by fingerprint, and whether they are certainly gone; None when it cannot be believed."""
    record = records.decode(data, SHARDS_KIND, where=where)
    if record is None or not isinstance(record.get("records"), dict):
        return None
    texts = {key: str(text).encode("utf-8", "surrogatepass") for key, text in record["records"].items()}
    return texts, bool(record.get("complete"))


def shard_record_url(root: str, fingerprint: str) -> str:
    """Return the URL of a shard's record."""
    return fs.join(layout.shard_folder(root, fingerprint), "manifest.json")


def is_claim(path: str) -> bool:
    """Whether a file is a claim."""
    return path.endswith(".claim")


def record_of_claim(url: str) -> str:
    """Return the URL of the record that a claim is about."""
    return f"{url.removesuffix('.claim')}.json"


def _relisted_by_another(root: str, found: Unlisted, pause: Callable[[float], object]) -> bool:
    """Wait until whoever holds the claim has decided; True when the result is listed again."""
    for _ in range(_POLLS):
        if listed(root, *found.key) is not None:
            return True
        if not fs.exists(found.url):
            return listed(root, *found.key) is not None
        pause(_POLL_SECONDS)
    log.warning("%s is claimed by a process that does not go on; its result is passed over", found.url)
    return False


def _claim(url: str, who: str) -> bool:
    record = records.encode(CLAIM_KIND, {"by": who, "nonce": secrets.token_hex(8)})
    return fs.create(_claim_url(url), record, durable=False)


def _claimant(url: str) -> str | None:
    record = records.load(_claim_url(url), CLAIM_KIND)
    return str(record.get("by")) if record is not None else None


def _claim_url(url: str) -> str:
    return f"{url.removesuffix('.json')}.claim"


def _encoded(committed: Manifest, text: bytes, *, complete: bool) -> bytes:
    record: dict[str, Json] = {
        "step": committed.step,
        "fingerprint": committed.fingerprint,
        "manifest": text.decode("utf-8", "surrogatepass"),
        "at": _now(),
        "complete": complete,
        "nonce": secrets.token_hex(8),  # so that a record can be told from an earlier one of the same manifest
    }
    return records.encode(KIND, record)


def _record_url(root: str, committed: Manifest, text: bytes) -> str:
    name = f"{committed.fingerprint[: layout.PREFIX_HEX]}-{hashlib.sha256(text).hexdigest()[:8]}.json"
    return fs.join(_folder(root), committed.step, name)


def _folder(root: str) -> str:
    return fs.join(layout.unlisted_folder(root), "artifacts")


def _manifest_url(root: str, step: str, fingerprint: str) -> str:
    return fs.join(layout.artifact_folder(root, step, fingerprint), "manifest.json")


def listed(root: str, step: str, fingerprint: str) -> Manifest | None:
    """Return the result that stands under a fingerprint; None when there is none that can be believed."""
    url = _manifest_url(root, step, fingerprint)
    data = fs.read_many([url]).get(url)
    found = manifest.decode(data, where=url, root=root) if data is not None else None
    return found if found is not None and (found.step, found.fingerprint) == (step, fingerprint) else None


def _files_present(root: str, committed: Manifest) -> bool:
    return present([placed(root, file) for file in committed.all_files])


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
