"""Which process holds something, and whether it is certainly gone.

Certain only where it can be: on the same boot of the same machine, in the same process namespace. Everywhere else a
waiter watches the heartbeat.
"""

import functools
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from marin.base.json import Json


def this_process() -> dict[str, Json]:
    """Return what identifies the running process among all that ever ran."""
    return dict(_identified(os.getpid()))


@functools.cache  # by process: after a fork it is another one
def _identified(pid: int) -> Mapping[str, Json]:
    seen = _seen(pid)
    return {"host": socket.gethostname(), "machine": _machine(), "pid": pid, "started": seen and seen.started}


def certainly_gone(process: Mapping[str, Json]) -> bool:
    """Whether the process ran on this boot of this machine and does not any more."""
    machine, pid = _machine(), process.get("pid")
    if machine is None or process.get("machine") != machine or not isinstance(pid, int):
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass  # another user's; /proc may hide it, and then only the heartbeat tells
    seen = _seen(pid)
    return seen is not None and (seen.dead or seen.started != process.get("started"))


def _machine() -> str | None:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:  # no /proc: only the heartbeat tells
        return None


class _Seen(NamedTuple):
    started: str
    """In ticks since boot."""
    dead: bool
    """It has ended, and its parent has not yet asked how."""


def _seen(pid: int) -> _Seen | None:
    """Return what /proc tells of a process; None when it tells nothing."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return _Seen(fields[19], fields[0] in ("Z", "X"))
