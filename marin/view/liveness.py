"""Whether a run that says it is running still is: a killed driver can write nothing any more.

Certain only on the machine where it ran; from elsewhere the time of its last event is all that can be shown.
"""

from typing import Any

from marin import fs
from marin.store import Store, layout, records
from marin.store.process import certainly_gone


def run_state(store: Store, run: str, record: dict[str, Any]) -> str:  # Any: JSON
    """Return the state in a run's record, or `lost` when its process is certainly gone without having said so."""
    state = str(record.get("state", "running"))
    beat = records.load(fs.join(layout.run_folder(store.url, run), "heartbeat.json"), "heartbeat")
    return "lost" if state == "running" and beat is not None and certainly_gone(beat["process"]) else state
