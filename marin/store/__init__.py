"""Records at URLs: artifacts, shards, leases, runs and their events."""

from marin.store.events import Event, EventReader, EventWriter
from marin.store.heartbeat import Heartbeat
from marin.store.lease import Holder, Lease, Leases
from marin.store.locks import read_lock, write_lock
from marin.store.manifest import Manifest, ParentRef, Producer, output_digest, shard_digest
from marin.store.run_id import new_run_id
from marin.store.shards import ShardCache
from marin.store.stop import StopWatch, ask_to_stop, ask_to_stop_now, read_stop, read_stop_now
from marin.store.store import Commit, Store
from marin.store.submission import Submission, read_submission, write_submission
from marin.store.upstream import own_contents, unplaced_contents

__all__ = [
    "Commit",
    "Event",
    "EventReader",
    "EventWriter",
    "Heartbeat",
    "Holder",
    "Lease",
    "Leases",
    "Manifest",
    "ParentRef",
    "Producer",
    "ShardCache",
    "StopWatch",
    "Store",
    "Submission",
    "ask_to_stop",
    "ask_to_stop_now",
    "new_run_id",
    "output_digest",
    "own_contents",
    "read_lock",
    "read_stop",
    "read_stop_now",
    "read_submission",
    "shard_digest",
    "unplaced_contents",
    "write_lock",
    "write_submission",
]
