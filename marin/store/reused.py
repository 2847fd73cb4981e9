"""Which shards an attempt took from the cache: what it reads before its manifest can say so.

Invariant: written before the shards are used. While the attempt goes on, and while it may be resumed, `marin gc` keeps
what stands here.
"""

from collections.abc import Sequence

from marin import fs
from marin.store import layout, records

KIND = "reused"
PREFIX = "reused-"


def record_reuse(store_url: str, step: str, fingerprint: str, attempt: str, shards: Sequence[str]) -> None:
    """Write down the fingerprints of shards that an attempt is about to use."""
    folder = layout.attempt_folder(layout.artifact_folder(store_url, step, fingerprint), attempt)
    url = fs.join(folder, f"{PREFIX}{fs.unique()}.json")
    fs.replace(url, records.encode(KIND, {"shards": list(shards)}))


def is_reuse(name: str) -> bool:
    """Whether a file of an attempt's folder is such a record."""
    return name.startswith(PREFIX) and name.endswith(".json")


def decode(data: bytes, *, where: str) -> list[str]:
    """Return the fingerprints in a record; none when it cannot be believed."""
    record = records.decode(data, KIND, where=where)
    return [str(each) for each in record["shards"]] if record and isinstance(record.get("shards"), list) else []
