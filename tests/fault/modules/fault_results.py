"""One attempt's output and manifest, as a worker would commit them."""

from marin.store import Manifest, Producer, Store, output_digest, unplaced_contents

STEP = "tokenize"


def attempted(store: Store, fingerprint: str, attempt: str, data: bytes, *, epoch: int = 1, at: str = "") -> Manifest:
    """Write an attempt's output and return the manifest that would commit it."""
    output = store.attempt_output(STEP, fingerprint, attempt)
    output.write("data.bin", data)
    contents = output.contents(meta={"count": 1})
    recorded = unplaced_contents(store, contents)
    return Manifest(
        fingerprint=fingerprint,
        step=STEP,
        artifact="Folder",
        artifact_schema=1,
        files=recorded.files,
        shards=recorded.shards,
        meta=recorded.meta,
        digest=output_digest("Folder", 1, contents),
        attempt=attempt,
        epoch=epoch,
        run=attempt,
        producer=Producer(user="ada"),
        started=at,
        finished=at,
        seconds=1.0,
        resources={},
        metrics={},
        recipe=fingerprint,
    )
