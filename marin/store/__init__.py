"""Records at URLs: artifacts, shards, leases, runs and their events."""

from marin.store.events import Event, EventReader, EventWriter
from marin.store.foreign import own_contents, unplaced_contents
from marin.store.heartbeat import Heartbeat
from marin.store.lease import Holder, Lease, Leases
from marin.store.locks import read_lock, write_lock
from marin.store.manifest import Manifest, ParentRef, Producer, output_digest, shard_digest
from marin.store.run_id import new_run_id
from marin.store.shards import ShardCache
from marin.store.stop import StopWatch, ask_to_stop
from marin.store.store import Commit, Store

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
    "ask_to_stop",
    "new_run_id",
    "output_digest",
    "own_contents",
    "read_lock",
    "shard_digest",
    "unplaced_contents",
    "write_lock",
]
