"""What went wrong in a worker, as a value: type, message, the user's frame, and the folded traceback.

Pure: it reads an exception and returns text. The user's frame comes first; frames of the engine, of Ray and of
other libraries are folded to a count.
"""

import re
import sys
import sysconfig
import traceback
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path

import marin
from marin.base.errors import MarinError
from marin.base.json import Json
from marin.base.text import printable
from marin.run.retry import Cause

_PACKAGE = str(Path(marin.__file__).parent)
_LIBRARIES = tuple({sysconfig.get_path(key) for key in ("stdlib", "platstdlib", "purelib", "platlib")})
_SENT = re.compile(r"[^\s\"'`]*/_ray_pkg_[0-9a-f]+/")
"""The folder into which Ray unpacks a working tree that was sent to a node."""
_ENGINE = tuple(f"{_PACKAGE}/{room}/" for room in ("run", "store", "fs", "graph", "base"))


@dataclass(frozen=True, slots=True)
class Failure:
    """Why there is no result."""

    cause: Cause
    type: str
    message: str
    where: str
    hint: str
    text: str = ""
    """The folded traceback."""

    @property
    def error(self) -> dict[str, Json]:
        """The `error` object of `marin run --json`."""
        return {key: value for key, value in asdict(self).items() if key in ("type", "message", "where", "hint")}


def user_errors(own_process: bool) -> tuple[type[BaseException], ...]:
    """Return what counts as an exception of the user's code; Ctrl-C is the user's wish where the process is theirs."""
    return (Exception, SystemExit, KeyboardInterrupt) if own_process else (Exception, SystemExit)


def lost(cause: Cause, message: str, *, where: str, hint: str) -> Failure:
    """Return the failure of a worker that left no traceback."""
    return Failure(cause, cause.name.lower(), message, where, hint, text=message)


def explain(error: BaseException, *, hint: str, cause: Cause = Cause.EXCEPTION) -> Failure:
    """Return the failure that an exception is; a MarinError keeps its own place and hint."""
    if hasattr(error, "ray_terminate_msg"):  # SystemExit, of Ray's handler of SIGTERM, amid the user's code
        return lost(Cause.LOST, "the worker process was told to end (SIGTERM)", where="", hint=hint)
    if cause is Cause.EXCEPTION and isinstance(error, MemoryError):  # the machine's state, not the code, decides
        cause = Cause.OUT_OF_MEMORY
    frames = traceback.extract_tb(error.__traceback__)
    user = next((frame for frame in reversed(frames) if not _is_framework(frame.filename)), None)
    place = f"{_short(user.filename)}:{user.lineno} in {user.name}" if user else ""
    if isinstance(error, MarinError):
        message, where, hint = _in_tree(error.what), _in_tree(error.where) or place, error.hint
    else:
        message, where = _in_tree(printable(f"{type(error).__name__}: {error}")), place
    return Failure(cause, type(error).__name__, message, where, hint, text=_fold(error, frames, place))


def _fold(error: BaseException, frames: traceback.StackSummary, place: str) -> str:
    lines = [
        f"{type(error).__name__}: {error}",
        f"  at   {place}" if place else "",
        "Traceback (most recent call last):",
    ]
    for framework, run in groupby(frames, key=lambda frame: _is_framework(frame.filename)):
        members = list(run)
        if framework:
            last = members[-1]
            lines.append(f"  ... {len(members)} framework frames, last {_short(last.filename)}:{last.lineno}")
        else:
            lines += [line.rstrip("\n") for line in traceback.format_list(members)]
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if cause is not None:
        lines += ["Caused by:", *(line.rstrip("\n") for line in traceback.format_exception(cause)[-8:])]
    return _in_tree("\n".join(line for line in lines if line)) + "\n"


def _in_tree(text: str) -> str:
    """Return text in which files of a working tree that was sent to a node are named as they are called in it."""
    return _SENT.sub("", text)


def _is_framework(path: str) -> bool:
    inside = path.startswith(f"{_PACKAGE}/")
    return path.startswith(_ENGINE) or (not inside and path.startswith(_LIBRARIES)) or path.startswith("<frozen")


def _short(path: str) -> str:
    if _SENT.match(path):
        return _in_tree(path)
    roots = [root for root in sys.path if root and path.startswith(root.rstrip("/") + "/")]
    return path[len(max(roots, key=len).rstrip("/")) + 1 :] if roots else path
