"""Kill a process at a named point of what it does to files, or at its nth audit event.

`python -m marin.testing PLAN SCRIPT ARGUMENTS...` runs a script until the point of the plan is reached, and then
ends itself with SIGKILL: no `finally`, no `atexit`, no flush. Points are audit events of CPython (`open`, `os.link`,
`os.rename` also for replace, `os.remove`, ...), which are raised just before the call; code under test can raise its
own with `sys.audit("name", path)`. Dying *after* a call means dying at the next event of the same thread.

`traced` and `killed` start such processes from a test. Counting begins at the event `marin.testing.start`, or at once
when the script never raises it.
"""

import json
import os
import runpy
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

START = "marin.testing.start"


@dataclass(frozen=True)
class Point:
    """The `nth` event (from 1) whose name and one of whose paths match; patterns are those of fnmatch."""

    event: str = "*"
    path: str = "*"
    nth: int = 1
    after: bool = False
    """Die at the thread's next event instead, when the call is done."""

    def concerns(self, event: str, arguments: Sequence[object]) -> bool:
        """Whether an event is one of those to count."""
        if not fnmatchcase(event, self.event):
            return False
        paths = [os.fsdecode(each) for each in arguments if isinstance(each, str | bytes | os.PathLike)]
        return self.path == "*" or any(fnmatchcase(path, self.path) for path in paths)


class Executioner:
    """An audit hook that kills this process at a point, or writes down what it passes."""

    def __init__(self, point: Point | None, trace: Path | None = None) -> None:
        self._point = point
        self._trace = os.open(trace, os.O_WRONLY | os.O_CREAT | os.O_APPEND) if trace else None
        self._left = point.nth if point else 0
        self._doomed: int | None = None
        self._inside = threading.local()
        self.started = True

    def __call__(self, event: str, arguments: Sequence[object]) -> None:
        """See one event; the hook cannot be taken away again."""
        if event == START:
            self.started = True
        if not self.started or getattr(self._inside, "busy", False):
            return
        self._inside.busy = True
        try:
            self._see(event, arguments)
        finally:
            self._inside.busy = False

    def _see(self, event: str, arguments: Sequence[object]) -> None:
        if self._trace is not None:
            paths = [each for each in arguments if isinstance(each, str)]
            os.write(self._trace, (json.dumps([event, *paths]) + "\n").encode())
        if self._doomed == threading.get_ident():
            os.kill(os.getpid(), signal.SIGKILL)
        if self._point is None or not self._left or not self._point.concerns(event, arguments):
            return
        self._left -= 1
        if self._left:
            return
        if self._point.after:
            self._doomed = threading.get_ident()
        else:
            os.kill(os.getpid(), signal.SIGKILL)


def killed(
    script: Path, arguments: Sequence[str], point: Point, *, env: Mapping[str, str] | None = None, timeout: float = 60
) -> bool:
    """Run a script until a point kills it; False when it came to its end without reaching it.

    Raises CalledProcessError, with what it printed, when it failed of itself.
    """
    code = _run(script, arguments, {"point": asdict(point)}, env, timeout)
    return code == -signal.SIGKILL


def traced(
    script: Path, arguments: Sequence[str], trace: Path, *, env: Mapping[str, str] | None = None, timeout: float = 60
) -> list[list[str]]:
    """Run a script to its end and return its events since the start, each with its paths."""
    _run(script, arguments, {"trace": str(trace)}, env, timeout)
    return [json.loads(line) for line in trace.read_text().splitlines()]


def _run(
    script: Path, arguments: Sequence[str], plan: Mapping[str, Any], env: Mapping[str, str] | None, timeout: float
) -> int:
    command = [sys.executable, "-m", "marin.testing", json.dumps(plan), str(script), *arguments]
    done = subprocess.run(
        command, env={**os.environ, **(env or {})}, capture_output=True, text=True, timeout=timeout, check=False
    )
    if done.returncode not in (0, -signal.SIGKILL):
        raise subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr)
    return done.returncode


def main(arguments: Sequence[str]) -> None:
    """Run the script of the command line under its plan."""
    plan, script, *rest = arguments
    record = json.loads(plan)
    point = Point(**record["point"]) if "point" in record else None
    executioner = Executioner(point, Path(record["trace"]) if "trace" in record else None)
    executioner.started = START not in Path(script).read_text()
    sys.addaudithook(executioner)
    sys.argv = [script, *rest]
    runpy.run_path(script, run_name="__main__")
