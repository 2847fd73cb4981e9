"""Kill a process at a named point of what it does to files, or at its nth audit event.

A `Script` is run again and again, each time in a new process, until a `Point` is reached: then it ends itself with
SIGKILL: no `finally`, no `atexit`, no flush. Points are audit events of CPython (`open`, `os.link`, `os.rename` also
for replace, `os.remove`, ...), which are raised just before the call; code under test can raise its own with
`sys.audit("name", path)`. Dying *after* a call means dying at the next event of the same thread.

Events count from the script's `sys.audit("marin.testing.start")`, or all of them when it has no such line. The new
processes are forks of one that has done the imports, which would take most of the time; it runs `serve`.
"""

import contextlib
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn, Self

START = "marin.testing.start"
LIMIT_SECONDS = 60


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
        return self.path == "*" or any(fnmatchcase(path, self.path) for path in _paths(arguments))


class Script:
    """A Python script that is run to its end, or to where it is killed; a context manager.

    `imports` are modules that it needs, imported once; `env` is added to the environment.
    """

    def __init__(self, path: Path, *, imports: Sequence[str] = (), env: Mapping[str, str] | None = None) -> None:
        self._command = [sys.executable, "-m", "marin.testing", str(path), *imports]
        self._env = {**os.environ, **(env or {})}

    def __enter__(self) -> Self:
        self._server = subprocess.Popen(
            self._command, env=self._env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._server.communicate(timeout=LIMIT_SECONDS)

    def killed(self, arguments: Sequence[str], point: Point, *, env: Mapping[str, str] | None = None) -> bool:
        """Run until the point kills it; False when it came to its end without reaching the point.

        Raises CalledProcessError, with what it printed, when it failed of itself or took more than a minute.
        """
        return self._run(arguments, {"point": asdict(point)}, env) == -signal.SIGKILL

    def traced(self, arguments: Sequence[str], *, env: Mapping[str, str] | None = None) -> list[list[str]]:
        """Run to the end and return the events since the start, each with its paths."""
        with tempfile.TemporaryDirectory() as folder:
            trace = Path(folder, "trace")
            self._run(arguments, {"trace": str(trace)}, env)
            return [json.loads(line) for line in trace.read_text().splitlines()]

    def _run(self, arguments: Sequence[str], plan: Mapping[str, Any], env: Mapping[str, str] | None) -> int:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        order = {**plan, "arguments": list(arguments), "env": dict(env or {})}
        self._server.stdin.write(json.dumps(order) + "\n")
        self._server.stdin.flush()
        answer = json.loads(self._server.stdout.readline())
        code = int(answer["code"])
        if code not in (0, -signal.SIGKILL):
            raise subprocess.CalledProcessError(code, [*self._command, *arguments], answer["printed"])
        return code


class Executioner:
    """An audit hook that kills this process at a point, or writes down what it passes; nothing takes it away again."""

    def __init__(self, point: Point | None, trace: Path | None, *, started: bool) -> None:
        self._point = point
        self._trace = os.open(trace, os.O_WRONLY | os.O_CREAT | os.O_APPEND) if trace else None
        self._started = started
        self._left = point.nth if point else 0
        self._doomed: int | None = None
        self._inside = threading.local()

    def __call__(self, event: str, arguments: Sequence[object]) -> None:
        """See one event."""
        self._started = self._started or event == START
        if not self._started or getattr(self._inside, "busy", False):
            return
        self._inside.busy = True  # what the hook does itself is no event
        try:
            self._see(event, arguments)
        finally:
            self._inside.busy = False

    def _see(self, event: str, arguments: Sequence[object]) -> None:
        if self._trace is not None:
            os.write(self._trace, (json.dumps([event, *_paths(arguments)]) + "\n").encode())
        if self._doomed == threading.get_ident():
            os.kill(os.getpid(), signal.SIGKILL)
        if self._point is None or not self._left or not self._point.concerns(event, arguments):
            return
        self._left -= 1
        if not self._left and self._point.after:
            self._doomed = threading.get_ident()
        elif not self._left:
            os.kill(os.getpid(), signal.SIGKILL)


def serve(script: str, *imports: str) -> None:
    """Run the script in a fork for each order that a `Script` writes, and answer with how it ended."""
    for module in imports:
        import_module(module)
    for line in sys.stdin:
        with tempfile.TemporaryFile() as printed:
            child = os.fork()
            if not child:
                _be_the_script(script, json.loads(line), printed.fileno())
            _, status = os.waitpid(child, 0)
            printed.seek(0)
            answer = {"code": os.waitstatus_to_exitcode(status), "printed": printed.read().decode("utf-8", "replace")}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def _be_the_script(script: str, order: Mapping[str, Any], printed: int) -> NoReturn:
    code = 1
    with contextlib.suppress(OSError):
        os.close(0)
    os.dup2(printed, 1)
    os.dup2(printed, 2)
    signal.alarm(LIMIT_SECONDS)
    os.environ.update(order["env"])
    sys.argv = [script, *order["arguments"]]
    point = Point(**order["point"]) if "point" in order else None
    trace = Path(order["trace"]) if "trace" in order else None
    sys.addaudithook(Executioner(point, trace, started=START not in Path(script).read_text()))
    try:
        runpy.run_path(script, run_name="__main__")
        code = 0
    finally:
        if code:
            sys.excepthook(*sys.exc_info())
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _paths(arguments: Sequence[object]) -> list[str]:
    return [os.fsdecode(each) for each in arguments if isinstance(each, str | bytes | os.PathLike)]
