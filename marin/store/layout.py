"""Where things lie in a store: pure paths, readable with `ls`.

Invariant: a path below the root is made here and nowhere else. Folders of artifacts carry the first 16 hex digits of
the fingerprint; the record inside carries all 64, which every hit compares.
"""

from marin.fs import join

FORMAT = 1
PREFIX_HEX = 16


def store_record(root: str) -> str:
    """Return the URL of the record that makes a folder a store."""
    return join(root, "store.json")


def steps_folder(root: str) -> str:
    """Return the URL of the folder with one folder a step name."""
    return join(root, "artifacts")


def artifact_folder(root: str, step: str, fingerprint: str) -> str:
    """Return the URL of everything that belongs to one fingerprint."""
    return join(root, "artifacts", step, fingerprint[:PREFIX_HEX])


def shard_folder(root: str, fingerprint: str) -> str:
    """Return the URL of one shard's outputs."""
    return join(root, "shards", fingerprint[:2], fingerprint)


def attempt_folder(owner: str, attempt: str) -> str:
    """Return the URL of one attempt's private outputs, below an artifact's or a shard's folder."""
    return join(owner, "attempts", attempt)


def runs_folder(root: str) -> str:
    """Return the URL of the folder with one folder a run."""
    return join(root, "runs")


def run_folder(root: str, run: str) -> str:
    """Return the URL of one run's records."""
    return join(root, "runs", run)


def blessed_folder(root: str) -> str:
    """Return the URL of the folder with one folder a step name, in which each blessing is a record."""
    return join(root, "blessed")


def code_folder(root: str) -> str:
    """Return the URL of the folder with the source of what users' steps were."""
    return join(root, "code")


def pins_folder(root: str) -> str:
    """Return the URL of the folder with one record a pin."""
    return join(root, "pins")


def unlisted_folder(root: str) -> str:
    """Return the URL of the folder with the records of results and shards whose files wait to be deleted."""
    return join(root, "unlisted")


def gc_folder(root: str) -> str:
    """Return the URL of the folder with the lease and heartbeat of the `marin gc` that is at work."""
    return join(root, "gc")


def relative(root: str, url: str) -> str:
    """Return a URL below the root as the path that manifests record."""
    assert url.startswith(f"{root}/"), f"{url} does not lie in the store {root}"
    return url[len(root) + 1 :]


def absolute(root: str, path: str) -> str | None:
    """Return the URL of a path that a manifest records; None if it climbs out of the store."""
    parts = path.split("/")
    climbs = path.startswith("/") or "://" in path or "\0" in path or ".." in parts
    return None if climbs or not path else join(root, path)
