"""Write the reference pages that come from the code: python docs/reference/generate.py

A test compares them, so that a page and the code it describes cannot part.
"""

from pathlib import Path

from marin.store.layout import FORMAT
from marin.store.models import MODELS, Field
from marin.store.records import SCHEMA

FOLDER = Path(__file__).parent
_TYPES = {str: "text", int: "integer", float: "number", bool: "true or false", dict: "object", list: "list"}

STORE_HEAD = f"""# The store's layout

*Written by `docs/reference/generate.py` from `marin/store/models.py`; do not edit.*

A store is a folder, or a prefix of a bucket. All of it can be read with `ls` and `cat`; nothing in it is ever executed.
This is format {FORMAT}, with records of schema {SCHEMA}. Why it is so: [identity](../explanation/identity.md),
[commit and leases](../explanation/commit-and-leases.md).

```text
STORE/store.json
STORE/artifacts/STEP/FINGERPRINT16/manifest.json      it exists = the step is done
                                  /recipe.json
                                  /attempts/ATTEMPT/output/…       private until committed
                                                   /log.txt, rank-N.log, result.json
                                  /leases/EPOCH.json
                                  /checkpoints/…                   of a training, over attempts
STORE/shards/2 HEX/SHARD FINGERPRINT/manifest.json
                                    /attempts/ATTEMPT/…
STORE/runs/RUN/run.json, heartbeat.json, submission.json, stop.json, events/WRITER-NUMBER.jsonl
STORE/pins/NAME.json
STORE/blessed/STEP/BEFORE16-NOW16.json
STORE/code/DIGEST16.json, sets/DIGEST16.json, modules/DIGEST16.py, locks/DIGEST16.txt
STORE/unlisted/…                                      what `marin gc` is about to delete
```

Folders carry the first 16 hex digits of a fingerprint; the records in them carry all 64, and every hit compares them.
Every record is one JSON object in UTF-8 with sorted keys. Besides the fields below it has `schema`, its `kind`, and
`checksum`: the first 32 hex digits of the sha256 of the record without it, written compactly with sorted keys. A record
that is torn, empty, altered, of another kind or schema, or that lacks a field, is passed over with a warning.
Paths in records are relative to the root and may not climb.
"""


def store_layout() -> str:
    """Return the page on paths and records of a store."""
    parts = [STORE_HEAD]
    for kind, model in MODELS.items():
        rows = [f"| `{name}` | {_type(field)} | {field.meaning} |" for name, field in model.fields.items()]
        table = "\n".join(["| Field | Type | Meaning |", "|---|---|---|", *rows])
        parts.append(f"## {kind}\n\n`{model.path}`\n\n{model.about}\n\n{table}\n")
    return "\n".join(parts)


def _type(field: Field) -> str:
    name = "number" if float in field.types else _TYPES.get(field.types[0], "any")
    return f"{name}, or none" if field.optional else name


PAGES = {"store-layout.md": store_layout}


if __name__ == "__main__":
    for page, text in PAGES.items():
        (FOLDER / page).write_text(text())
