"""A storage that misbehaves by rule: what `fault://` URLs lead to.

Invariant: rules change what a client sees and whether a call is done, never what is stored: an object is whole, and a
create has one winner. A client that crashed stays dead. Calls are counted by operation.

In memory, a storage is known by its name in the process that made it. In a folder, every process finds its rules in
`faults.json` there, and counts its own calls.
"""

import errno
import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Self, TypeVar
from weakref import WeakValueDictionary

from marin.base.errors import ConfigurationError
from marin.base.json import pretty
from marin.testing.objects import FolderObjects, MemoryObjects, Objects
from marin.testing.rules import Rule, Rules

T = TypeVar("T")

PLAN = "faults.json"


class Crash(BaseException):
    """A client died at a call to its storage. Nothing but a test catches it."""


class Call(NamedTuple):
    """One call, as it was asked."""

    operation: str
    path: str
    client: str


class FaultyStorage:
    """Objects under `fault://` and the rules by which calls to them go wrong; `memory` and `folder` make one.

    Set `rules` at any time. `calls` counts by operation, `log` lists every call.
    """

    def __init__(self, root: str, objects: Objects, rules: Rules, sleep: Callable[[float], object]) -> None:
        self._root = root
        self._objects = objects
        self._rules = rules
        self._sleep = sleep
        self._lock = threading.Lock()
        self.calls: Counter[str] = Counter()
        self.log: list[Call] = []
        self.dead: set[str] = set()
        _storages[root] = self

    @classmethod
    def memory(
        cls, name: str, rules: Sequence[Rule] = (), *, seed: int = 0, sleep: Callable[[float], object] = time.sleep
    ) -> Self:
        """Return an empty storage of this process; another of the same name is forgotten.

        `sleep` takes the seconds of `slow` calls: a `Clock`'s makes them simulated.
        """
        return cls(name, MemoryObjects(), Rules(rules, seed=seed), sleep)

    @classmethod
    def folder(
        cls, path: Path, rules: Sequence[Rule] = (), *, seed: int = 0, sleep: Callable[[float], object] = time.sleep
    ) -> Self:
        """Return the storage in a local folder, with these rules for all processes that open it from now on."""
        path.mkdir(parents=True, exist_ok=True)
        planned = Rules(rules, seed=seed)
        partial = path / f"{PLAN}.{os.getpid()}.{threading.get_ident()}"
        partial.write_text(pretty(planned.to_json()))
        partial.replace(path / PLAN)
        return cls(str(path.absolute()), FolderObjects(path.absolute() / "objects"), planned, sleep)

    def url(self, path: str = "", *, client: str = "") -> str:
        """Return the `fault://` URL of a path here; calls through it are those of `client`."""
        return "fault://" + (f"{client}@" if client else "") + "/".join(part for part in (self._root, path) if part)

    @property
    def rules(self) -> tuple[Rule, ...]:
        """What goes wrong; assigning starts all counts anew, in this process."""
        return self._rules.rules

    @rules.setter
    def rules(self, rules: Sequence[Rule]) -> None:
        self._rules = Rules(rules, seed=self._rules.seed)

    @property
    def objects(self) -> Objects:
        """What is stored, past all rules: for a test to look at, and to damage."""
        return self._objects

    def crash(self, client: str = "") -> None:
        """Let a client die: each of its calls from now on is a Crash, and does nothing."""
        self.dead.add(client)

    def call(self, operation: str, path: str, client: str, act: Callable[[], T]) -> T:
        """Do `act`, with whatever the rules say of such a call."""
        if client in self.dead:
            raise Crash(f"{client or 'the client'} is dead")
        with self._lock:
            self.calls[operation] += 1
            self.log.append(Call(operation, path, client))
        struck = self._rules.strike(operation, path, client)
        for rule in struck:
            self._before(rule, path, client)
        late = next((rule for rule in struck if rule.fault in ("lost", "crash-after", "kill-after")), None)
        try:
            result = act()
        except (FileExistsError, FileNotFoundError):
            if late is not None:
                self._after(late, operation, path, client)
            raise
        for rule in struck:
            self._after(rule, operation, path, client)
            if isinstance(result, bytes):
                result = _damaged(result, rule)  # type: ignore[assignment]
        return result

    def _before(self, rule: Rule, path: str, client: str) -> None:
        """Do what happens instead of the call, as s3fs and the operating system would say it."""
        match rule.fault:
            case "slow":
                self._sleep(rule.seconds)
            case "timeout":
                raise TimeoutError(f"Read timeout on endpoint URL: {path}")
            case "503":
                raise OSError(errno.EBUSY, "Please reduce your request rate.")
            case "409":
                raise OSError(errno.EIO, "A conflicting conditional operation is currently in progress (409)")
            case "denied":
                raise PermissionError(f"Access Denied: {path}")
            case "full":
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            case "crash-before":
                self.crash(client)
                raise Crash(f"before {path}")
            case "kill-before":
                os.kill(os.getpid(), signal.SIGKILL)

    def _after(self, rule: Rule, operation: str, path: str, client: str) -> None:
        match rule.fault:
            case "lost":
                raise TimeoutError(f"Read timeout on endpoint URL: {path}")
            case "412" if operation == "create":
                raise FileExistsError("At least one of the pre-conditions you specified did not hold")
            case "crash-after":
                self.crash(client)
                raise Crash(f"after {path}")
            case "kill-after":
                os.kill(os.getpid(), signal.SIGKILL)


def _damaged(data: bytes, rule: Rule) -> bytes:
    if rule.fault == "cut":
        return data[: len(data) // 2]
    if rule.fault == "flip" and data:
        middle = len(data) // 2
        return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
    return data


class Place(NamedTuple):
    """Where a path of the file system leads: a storage, the key there, and whose call it is."""

    storage: FaultyStorage
    key: str
    client: str


_storages: WeakValueDictionary[str, FaultyStorage] = WeakValueDictionary()
_opened: dict[str, FaultyStorage] = {}  # by this process from another's plan: nobody else keeps them alive


def place(path: str) -> Place:
    """Return where a path such as `ada@lab/store/x` or `/tmp/lab/store/x` leads; ConfigurationError if nowhere."""
    client, marked, rest = path.partition("@")
    if not marked or "/" in client:
        client, rest = "", path
    parts = rest.split("/")
    for length in range(1, len(parts) + 1):
        root = "/".join(parts[:length])
        storage = _storages.get(root) or _planned(root)
        if storage is not None:
            return Place(storage, "/".join(parts[length:]), client)
    raise ConfigurationError(
        f"there is no faulty storage at fault://{path}",
        where=f"fault://{path}",
        hint="make it with FaultyStorage.memory(name) in this process, or FaultyStorage.folder(path)",
    )


def _planned(root: str) -> FaultyStorage | None:
    """Return the storage that another process has planned in a folder."""
    if not root.startswith("/"):
        return None
    try:
        record = json.loads(Path(root, PLAN).read_text())
    except (FileNotFoundError, NotADirectoryError):
        return None
    storage = FaultyStorage(root, FolderObjects(Path(root, "objects")), Rules.from_json(record), time.sleep)
    return _opened.setdefault(root, storage)
