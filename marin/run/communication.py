"""How ranks reach each other: the environment of NCCL, gloo and their flight recorder, from this one place.

Pure but for two looks at the machine (interfaces, NCCL's own files). Invariant: what the user has set, in the
environment or in NCCL's configuration files, stays as it is. It knows no torch. docs/explanation/gangs.md has the
table.
"""

import contextlib
import fcntl
import socket
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path

LOOPBACK = "127.0.0.1"
NCCL_FILES = (Path("/etc/nccl.conf"), Path.home() / ".nccl.conf")
RECORDED_CALLS = 2000
WATCHDOG_SECONDS = 480
_SIOCGIFADDR = 0x8915
# Former names of the same settings: who has set one of them has decided.
_FORMER = {
    "TORCH_FR_BUFFER_SIZE": "TORCH_NCCL_TRACE_BUFFER_SIZE",
    "TORCH_FR_DUMP_TEMP_FILE": "TORCH_NCCL_DEBUG_INFO_TEMP_FILE",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "NCCL_ASYNC_ERROR_HANDLING",
}


def communication(*, interface: str | None, scratch: str, given: Iterable[str]) -> dict[str, str]:
    """Return the variables of a rank's communication, without those that are `given` already.

    `scratch` is a local folder, to which the flight recorder writes `flight-<rank>` when a collective hangs.
    """
    wanted = {
        "NCCL_DEBUG": "WARN",
        # 3: after an error or a timeout of a collective the process ends, without waiting for the others.
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3",
        "TORCH_NCCL_ENABLE_MONITORING": "1",
        "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": str(WATCHDOG_SECONDS),
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_FR_BUFFER_SIZE": str(RECORDED_CALLS),
        "TORCH_FR_DUMP_TEMP_FILE": f"{scratch}/flight-",
    }
    if interface is not None:
        wanted["NCCL_SOCKET_IFNAME"] = f"={interface}"  # without the sign it would be a prefix: eth1 for eth10
        wanted["GLOO_SOCKET_IFNAME"] = interface
    decided = set(given)
    return {name: value for name, value in wanted.items() if name not in decided and _FORMER.get(name) not in decided}


def interface_of(address: str) -> str | None:
    """Return the name of the network interface that holds an IPv4 address; None where that is not known."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            with contextlib.suppress(OSError):  # an interface without an IPv4 address
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
                if socket.inet_ntoa(answer[20:24]) == address:
                    return name
    return None


def decided(environment: Mapping[str, str], files: Iterable[Path] = NCCL_FILES) -> set[str]:
    """Return the names that the environment or NCCL's configuration files have set."""
    names = set(environment)
    for file in files:
        with contextlib.suppress(OSError):
            lines = file.read_text(errors="replace").splitlines()
            names |= {line.partition("=")[0].strip() for line in lines if "=" in line and not line.startswith("#")}
    return names
