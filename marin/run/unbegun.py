"""The record of a submitted run whose driver could not write one: it never began, or ended without a word.

Invariant: what a driver has recorded itself is never replaced, save `running` once its job is known to be over. A run
that was recorded here does not begin later: its driver looks first.
"""

from collections.abc import Mapping
from datetime import UTC, datetime

from marin import fs
from marin.base.errors import Interrupted, MarinError
from marin.base.json import Json
from marin.store import Store, layout, read_submission, records


def record_unbegun(store: Store, run: str, error: MarinError) -> bool:
    """Record why a submitted run never began, for whoever looks on; False if it has a record."""
    sent = read_submission(store.url, run)
    known: dict[str, Json] = {"run": run, "store": store.url, "steps": []}
    if sent is not None:
        who = {name: sent.producer[name] for name in ("user", "host", "commit") if sent.producer.get(name)}
        typed: dict[str, Json] = {"options": list(sent.options), "arguments": list(sent.arguments)}
        known |= {**who, "started": sent.at, "target": sent.target, **typed}
    record = {**known, **_end(error)}
    return fs.create(fs.join(layout.run_folder(store.url, run), "run.json"), records.encode("run", record))


def record_lost(store: Store, run: str, record: Mapping[str, Json], error: MarinError) -> None:
    """Record how a run ended whose own record still says that it goes on, although its job is over."""
    store.write_run(run, {**record, **_end(error)})


def _end(error: MarinError) -> dict[str, Json]:
    said: dict[str, Json] = {"message": error.what, "where": error.where, "hint": error.hint}
    return {
        "state": "stopped" if isinstance(error, Interrupted) else "failed",
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "error": {"type": type(error).__name__, **said},
    }
