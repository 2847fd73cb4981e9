"""A process that takes a lease, beats, and commits when it is told to: `fault_holder.py STORE FINGERPRINT`."""

import sys

from fault_results import STEP, attempted

from marin.store import Heartbeat, Leases, Store


def main(url: str, fingerprint: str) -> None:
    store = Store.open(url, write=True)
    heartbeat = Heartbeat(store, "holder", interval=0.05)
    heartbeat.start()
    leases = Leases(store, "holder")
    lease = leases.acquire(STEP, fingerprint)
    say(type(lease).__name__)
    sys.stdin.readline()
    commit = store.commit(attempted(store, fingerprint, "holder", b"tokens"))
    leases.release(lease)
    heartbeat.stop()
    say(commit.outcome)


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
