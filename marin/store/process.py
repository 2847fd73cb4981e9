"""Which process holds something, and whether it is certainly gone.

Certain only where it can be: on the same boot of the same machine, in the same process namespace. Everywhere else a
waiter watches the heartbeat.
"""

import os
import socket
from collections.abc import Mapping
from pathlib import Path

from marin.base.json import Json


def this_process() -> dict[str, Json]:
    """Return what identifies the running process among all that ever ran."""
    return {"host": socket.gethostname(), "machine": _machine(), "pid": os.getpid(), "started": _started(os.getpid())}


def certainly_gone(process: Mapping[str, Json]) -> bool:
    """Whether the process ran on this boot of this machine and does not any more."""
    machine, pid = _machine(), process.get("pid")
    if machine is None or process.get("machine") != machine or not isinstance(pid, int):
        return False
    return _started(pid) != process.get("started")


def _machine() -> str | None:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:  # no /proc: only the heartbeat tells
        return None


def _started(pid: int) -> str | None:
    """Return when a process began, in ticks since boot; None when there is no such process, or a dead one."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in ("Z", "X") else fields[19]
