"""What each kind of record holds: where it lies, its fields and what they mean.

Invariant: a record that lacks a field of its model, or holds something else in its place, is not believed; one with
more fields than these is, so that a later marin may add some. The reference page is written from here.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

TEXT, INTEGER, NUMBER, FLAG = (str,), (int,), (int, float), (bool,)
OBJECT, LIST, ANYTHING = (dict,), (list,), (object,)

_FINGERPRINT = "the whole fingerprint, 64 hex digits; compared on every hit"
_AT = "when, ISO 8601 with its offset from UTC"
_PROCESS = "host, boot and process namespace, pid and its start, by which the same machine knows that it has ended"


class Field(NamedTuple):
    """One field of a record."""

    types: tuple[type, ...]
    meaning: str
    optional: bool = False
    """Null or absent in some records."""


class Model(NamedTuple):
    """One kind of record."""

    path: str
    """Below the store's root."""
    about: str
    fields: Mapping[str, Field]


MODELS: Mapping[str, Model] = {
    "store": Model(
        "store.json",
        "Makes a folder a store. Made once; if it is damaged, delete it, and the next run makes it again.",
        {"format": Field(INTEGER, "the format of all that lies below; a newer one than marin knows is refused")},
    ),
    "manifest": Model(
        "artifacts/STEP/FINGERPRINT16/manifest.json",
        "The commit record of an artifact: that it exists means that the step is done. Create-only.",
        {
            "fingerprint": Field(TEXT, _FINGERPRINT),
            "step": Field(TEXT, "the step's declared name"),
            "artifact": Field(TEXT, "the artifact's type"),
            "artifact_schema": Field(INTEGER, "the schema of that type"),
            "files": Field(LIST, "its own files: `path` in it, `url` below the root, `size`, blake3 `digest`"),
            "shards": Field(LIST, "its shards in order: `name`, `digest`, `value` that the function returned, `files`"),
            "meta": Field(ANYTHING, "what the step says of it, any JSON", optional=True),
            "digest": Field(TEXT, "the output digest: type, files, shards and meta; what children are keyed on"),
            "attempt": Field(TEXT, "the attempt that made it"),
            "epoch": Field(INTEGER, "the number of the lease under which it was made"),
            "run": Field(TEXT, "the run that made it"),
            "producer": Field(OBJECT, "who and from what, never part of a key: `user`, `host`, git `commit`, digests of"
                " the uncommitted `diff` and of the `lock` (installed distributions), `versions`"),
            "started": Field(TEXT, _AT),
            "finished": Field(TEXT, _AT),
            "seconds": Field(NUMBER, "how long the attempt took"),
            "resources": Field(OBJECT, "what it was placed on"),
            "metrics": Field(OBJECT, "the last number of each name"),
            "recipe": Field(TEXT, "the recipe fingerprint"),
            "bytes": Field(INTEGER, "the size of all its files and its shards' files"),
            "name": Field(TEXT, "what the step was called in the plan", optional=True),
            "parents": Field(LIST, "what it read: `path` of the field, `step`, `fingerprint`, `digest`", optional=True),
            "source": Field(TEXT, "the digest of the step's source, whatever its version says", optional=True),
            "modules": Field(TEXT, "digest of the set of whole modules that it was made from", optional=True),
            "constructor": Field(OBJECT, "how to write the step in Python again, for `marin repro`", optional=True),
        },
    ),
    "recipe": Model(
        "artifacts/STEP/FINGERPRINT16/recipe.json",
        "What the fingerprint was computed from, and for code the digest of each definition.",
        {
            "fingerprint": Field(TEXT, _FINGERPRINT),
            "recipe": Field(OBJECT, "step, artifact, config, code, inputs, requires; `definitions` do not count"),
        },
    ),
    "lease": Model(
        "artifacts/STEP/FINGERPRINT16/leases/EPOCH.json",
        "The right of one run to produce a fingerprint; the highest number counts. Create-only.",
        {
            "fingerprint": Field(TEXT, _FINGERPRINT),
            "run": Field(TEXT, "the run that holds it"),
            "nonce": Field(TEXT, "chance, so that no two leases are equal"),
            "user": Field(TEXT, "who runs it"),
            "process": Field(OBJECT, _PROCESS),
            "since": Field(TEXT, _AT),
        },
    ),
    "released": Model(
        "artifacts/STEP/FINGERPRINT16/leases/EPOCH.released.json",
        "The lease of that number was given back.",
        {"run": Field(TEXT, "the run that held it"), "at": Field(TEXT, _AT)},
    ),
    "former manifest": Model(
        "artifacts/STEP/FINGERPRINT16/attempts/ATTEMPT/invalidated.json or replaced.json",
        "A result that `marin invalidate` or another attempt took away; its files stay until `marin gc`.",
        {
            "manifest": Field(TEXT, "the text of the manifest"),
            "user": Field(TEXT, "who"),
            "at": Field(TEXT, _AT),
            "reason": Field(TEXT, "why", optional=True),
        },
    ),
    "reused": Model(
        "artifacts/STEP/FINGERPRINT16/attempts/ATTEMPT/reused-….json",
        "Shards that an attempt met and counts on; `marin gc` leaves them alone.",
        {"shards": Field(LIST, "shard fingerprints")},
    ),
    "shard": Model(
        "shards/2 HEX/SHARD FINGERPRINT/manifest.json",
        "The commit record of one shard: what one function made of one input shard. Create-only.",
        {
            "fingerprint": Field(TEXT, "the whole shard fingerprint"),
            "shard": Field(OBJECT, "`name`, `digest`, `value`, `files`, as in a manifest"),
        },
    ),
    "run": Model(
        "runs/RUN/run.json",
        "One run: written when it begins and when it ends.",
        {
            "run": Field(TEXT, "its id, which sorts by time", optional=True),
            "state": Field(TEXT, "running, done, failed or stopped"),
            "steps": Field(LIST, "each step's `name`, `step`, `state`; in the end as in `run --json`", optional=True),
            "store": Field(TEXT, "the store's URL then", optional=True),
            "user": Field(TEXT, "who", optional=True),
            "host": Field(TEXT, "where", optional=True),
            "commit": Field(TEXT, "git commit", optional=True),
            "pid": Field(INTEGER, "the driver's process", optional=True),
            "started": Field(TEXT, _AT, optional=True),
            "finished": Field(TEXT, _AT, optional=True),
            "target": Field(TEXT, "the pipeline, as typed", optional=True),
            "options": Field(LIST, "its options, as typed", optional=True),
            "arguments": Field(LIST, "the verb's own options", optional=True),
            "folder": Field(TEXT, "where the command was given", optional=True),
            "error": Field(OBJECT, "what ended it as a whole: `type`, `message`, `where`, `hint`", optional=True),
        },
    ),
    "heartbeat": Model(
        "runs/RUN/heartbeat.json",
        "Rewritten every 20 seconds while the run lives; whoever waits for its leases watches it.",
        {"beat": Field(INTEGER, "counts up"), "process": Field(OBJECT, _PROCESS)},
    ),
    "stop": Model(
        "runs/RUN/stop.json or stop-now.json",
        "That somebody asked the run to stop, or to stop at once; its processes watch for it. Create-only.",
        {
            "run": Field(TEXT, "the run's id"),
            "user": Field(TEXT, "who asked"),
            "asked": Field(TEXT, _AT),
        },
    ),
    "submission": Model(
        "runs/RUN/submission.json",
        "That the run was sent to a cluster as a Ray job; written before, and looked for by its driver. Create-only.",
        {
            "run": Field(TEXT, "the run's id"),
            "ray_job": Field(TEXT, "the id of the Ray job"),
            "address": Field(TEXT, "where it was sent"),
            "at": Field(TEXT, _AT),
            "target": Field(TEXT, "the pipeline, as typed"),
            "options": Field(LIST, "its options, as typed", optional=True),
            "arguments": Field(LIST, "the verb's own options", optional=True),
            "folder": Field(TEXT, "where the command was given", optional=True),
            "producer": Field(OBJECT, "who sent it, and from which commit", optional=True),
        },
    ),
    "pin": Model(
        "pins/NAME.json",
        "A result that `marin pin` keeps.",
        {
            "name": Field(TEXT, "the pin's name"),
            "step": Field(TEXT, "the step's name"),
            "fingerprint": Field(TEXT, _FINGERPRINT),
            "digest": Field(TEXT, "its output digest"),
            "user": Field(TEXT, "who"),
            "at": Field(TEXT, _AT),
            "reason": Field(TEXT, "why", optional=True),
        },
    ),
    "blessing": Model(
        "blessed/STEP/BEFORE16-NOW16.json",
        "Changed code that `marin bless` accepted. Create-only; `--undo` deletes it.",
        {
            "step": Field(TEXT, "the step's name"),
            "before": Field(TEXT, "digest of the code that made the results"),
            "now": Field(TEXT, "digest of the changed code"),
            "reason": Field(TEXT, "why it means the same"),
            "user": Field(TEXT, "who says so"),
            "at": Field(TEXT, _AT),
        },
    ),
    "code": Model(
        "code/DIGEST16.json",
        "The definitions that a user's step reached, as they were. Text, never executed.",
        {
            "digest": Field(TEXT, "the code digest"),
            "definitions": Field(OBJECT, "the text of each definition that counts"),
        },
    ),
    "modules": Model(
        "code/sets/DIGEST16.json",
        "The whole modules that a result was made from; `code/modules/` has their texts by sha256. Never executed.",
        {"digest": Field(TEXT, "the digest of the set"), "modules": Field(OBJECT, "sha256 of each module's text")},
    ),
    "unlisted": Model(
        "unlisted/artifacts/STEP/….json",
        "A result that `marin gc` has unlisted, and whose files wait to be deleted.",
        {
            "step": Field(TEXT, "the step's name"),
            "fingerprint": Field(TEXT, _FINGERPRINT),
            "manifest": Field(TEXT, "the text of the manifest"),
            "at": Field(TEXT, _AT),
            "complete": Field(FLAG, "whether the manifest is gone"),
            "nonce": Field(TEXT, "chance"),
        },
    ),
    "unlisted shards": Model(
        "unlisted/shards/….json",
        "The same for shards.",
        {
            "records": Field(OBJECT, "the text of each shard's record"),
            "at": Field(TEXT, _AT),
            "complete": Field(FLAG, "whether the records are gone"),
        },
    ),
    "claim": Model(
        "unlisted/artifacts/STEP/….claim",
        "Who decides about an unlisted result: a gc that deletes it, or a run that lists it again. Create-only.",
        {"by": Field(TEXT, "who"), "nonce": Field(TEXT, "chance")},
    ),
}  # fmt: skip


_INSIDE: Mapping[str, Mapping[str, tuple[type, ...]]] = {
    "manifest": {
        "producer.user": TEXT,
        "producer.host": TEXT,
        "producer.commit": TEXT,
        "metrics.*": NUMBER,
    },
    "recipe": {"recipe.config": OBJECT},
    "run": {
        "steps.*": OBJECT,
        "steps.*.name": TEXT,
        "steps.*.step": TEXT,
        "steps.*.fingerprint": TEXT,
        "steps.*.attempts": INTEGER,
        "steps.*.seconds": NUMBER,
        "steps.*.shards": OBJECT,
        "steps.*.shards.*": INTEGER,
        "steps.*.metrics": OBJECT,
        "steps.*.error": OBJECT,
    },
}
"""What plans and screens take for granted inside a field; `*` stands for every member."""


def problem_with(kind: str, record: Mapping[str, Any]) -> str | None:  # Any: JSON
    """Return what is wrong with a record of a kind, such as "lacks `run`"; None for what its model allows."""
    model = MODELS.get(kind)
    for name, field in model.fields.items() if model else ():
        value = record.get(name)
        if value is None:
            if not field.optional:
                return f"lacks `{name}`"
        elif not isinstance(value, field.types):
            return f"holds {type(value).__name__} as `{name}`"
    for place, types in _INSIDE.get(kind, {}).items():
        for value in _members(record, place.split(".")):
            if not isinstance(value, types):
                return f"holds {type(value).__name__} as `{place}`"
    return None


def _members(value: Any, place: Sequence[str]) -> Iterator[Any]:  # Any: JSON
    """Yield what a record holds at a place, each member for `*`; null and absent ones are left out."""
    if value is None:
        return
    if not place:
        yield value
    elif place[0] == "*":
        for member in value.values() if isinstance(value, dict) else value:
            yield from _members(member, place[1:])
    elif isinstance(value, Mapping):
        yield from _members(value.get(place[0]), place[1:])
