"""Former results: manifests that were taken away on purpose, kept in the folder of the attempt that made them.

`invalidated.json` is written by `marin invalidate`, and can be undone; `replaced.json` by a commit that another was to
make way for. Invariant: the record is there before the manifest goes. Files stay until `marin gc` takes the attempt.
"""

from dataclasses import dataclass
from datetime import UTC, datetime

from marin import fs
from marin.base.errors import StoreError
from marin.base.json import Json
from marin.store import layout, manifest, records
from marin.store.manifest import Manifest, placed
from marin.store.presence import present
from marin.store.unlisted import of_result

KIND = "former manifest"
INVALIDATED = "invalidated.json"
REPLACED = "replaced.json"
NAMES = (INVALIDATED, REPLACED)


@dataclass(frozen=True)
class Former:
    """A manifest that was taken away: by whom, when and why."""

    manifest: Manifest
    text: bytes
    """The manifest as it was stored."""
    user: str
    at: str
    reason: str | None


def invalidate(root: str, listed: Manifest, *, user: str, reason: str | None) -> bool:
    """Forget a result, so that it runs again; False when another stands in its place by now."""
    url = _manifest_url(root, listed)
    text = fs.read_many([url]).get(url)
    if text is None or manifest.decode(text, where=url) != listed:
        return False
    fs.replace(_former_url(root, listed, INVALIDATED), _encoded(text, user=user, reason=reason))
    for unlisted in of_result(root, listed.step, listed.fingerprint):
        fs.delete(unlisted.url)  # or the next run would bring an even older result back
    fs.delete_unchanged(url, text)
    return True


def record_replaced(root: str, replaced: Manifest, text: bytes, *, by: str) -> None:
    """Keep a manifest that a commit is about to replace: whoever hit it goes on reading its files."""
    fs.replace(_former_url(root, replaced, REPLACED), _encoded(text, user=by, reason="another attempt replaces it"))


def undo(root: str, former: Former) -> None:
    """Bring an invalidated result back; StoreError when it was made anew or its files are gone."""
    url, record = _manifest_url(root, former.manifest), _former_url(root, former.manifest, INVALIDATED)
    where = layout.artifact_folder(root, former.manifest.step, former.manifest.fingerprint)
    gone = StoreError("its files are gone from the store", where=where, hint="run its pipeline again: it is made anew")
    if not present([placed(root, file) for file in former.manifest.all_files]):
        raise gone
    if not fs.create(url, former.text):
        raise StoreError("it has been made anew since", where=url, hint="`marin show` it: there is nothing to undo")
    if not fs.exists(record):  # a gc deletes the record before it looks at the manifest and before any other file
        fs.delete_unchanged(url, former.text)
        raise gone
    fs.delete(record)


def invalidated(root: str) -> list[Former]:
    """Return all results that were invalidated, newest first; records that cannot be believed are left out."""
    _, entries = fs.glob(fs.join(layout.steps_folder(root), "*", "*", "attempts", "*", INVALIDATED))
    stored = fs.read_many(entry.url for entry in entries)
    found = [decode(data, where=url, root=root) for url, data in stored.items()]
    return sorted((each for each in found if each is not None), key=lambda each: each.at, reverse=True)


def former_of(root: str, step: str, fingerprint: str) -> Former | None:
    """Return the newest invalidated result of a fingerprint; None when none was, or its record is gone."""
    folder = fs.join(layout.artifact_folder(root, step, fingerprint), "attempts")
    urls = [fs.join(folder, attempt, INVALIDATED) for attempt in fs.list_folder(folder)]
    found = [decode(data, where=url, root=root) for url, data in fs.read_many(urls).items()]
    named = [each for each in found if each is not None and each.manifest.fingerprint == fingerprint]
    return max(named, key=lambda each: each.at, default=None)


def decode(data: bytes, *, where: str, root: str) -> Former | None:
    """Return the record, or None with a warning when it cannot be believed."""
    record = records.decode(data, KIND, where=where)
    if record is None or not isinstance(record.get("manifest"), str):
        return None
    text = record["manifest"].encode("utf-8", "surrogatepass")
    former = manifest.decode(text, where=where, root=root)
    user, at = str(record.get("user")), str(record.get("at"))
    return Former(former, text, user, at, record.get("reason")) if former is not None else None


def _encoded(text: bytes, *, user: str, reason: str | None) -> bytes:
    at = datetime.now(UTC).isoformat(timespec="seconds")
    record: dict[str, Json] = {"manifest": text.decode("utf-8", "surrogatepass"), "user": user, "at": at}
    return records.encode(KIND, {**record, "reason": reason})


def _former_url(root: str, taken: Manifest, name: str) -> str:
    owner = layout.artifact_folder(root, taken.step, taken.fingerprint)
    return fs.join(layout.attempt_folder(owner, taken.attempt), name)


def _manifest_url(root: str, taken: Manifest) -> str:
    return fs.join(layout.artifact_folder(root, taken.step, taken.fingerprint), "manifest.json")
