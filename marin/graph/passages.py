"""Passages: the source text behind a code digest, for explanations and for `repro`.

Nothing is computed until somebody asks. Each text is what stood in the file when its module was loaded, never what
stands there now.
"""

import importlib.util
import io
import re
import sys
import tokenize
from collections.abc import Iterable
from typing import NamedTuple

from marin.graph.loaded import Globals, bytes_of, is_first_party, source_of

_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
"""A line as Python's tokenizer counts them: a form feed ends none."""


class Passage(NamedTuple):
    """Where a definition stands: lines of a module, or a text of its own when it stands in no file."""

    name: str
    space: Globals
    text: bytes
    """Of the whole module, as it was loaded."""
    spans: tuple[tuple[int, int], ...]
    """First and last line, counted from 1."""


def texts(passages: Iterable[Passage]) -> dict[str, str]:
    """Return the text of each definition that has one, whole lines, its decorators included."""
    lines: dict[bytes, list[str]] = {}
    found: dict[str, str] = {}
    for passage in passages:
        if passage.spans:
            if passage.text not in lines:
                lines[passage.text] = _LINE.findall(_decoded(passage.text))
            inside = [lines[passage.text][first - 1 : last] for first, last in passage.spans]
            before = found.get(passage.name, "")
            found[passage.name] = before + "".join(line for part in inside for line in part)
    return found


def modules(passages: Iterable[Passage]) -> dict[str, str]:
    """Return the text of the modules of these passages, of their packages, and of all first-party code they import."""
    found: dict[str, bytes] = {}
    waiting: list[Globals] = []
    for passage in passages:
        name = str(passage.space.get("__name__"))
        if name not in found:
            waiting.append(passage.space)
        if passage.space.get("__file__"):
            found[name] = passage.text
        elif passage.text not in found.get(name, b""):  # a notebook's cells, in the order in which they are reached
            found[name] = found.get(name, b"") + passage.text
    while waiting:
        space = waiting.pop()
        for name in _needed(space):
            module = sys.modules.get(name)
            if name not in found and module is not None and is_first_party(vars(module)):
                found[name] = bytes_of(vars(module))
                waiting.append(vars(module))
    return {name: _decoded(text) for name, text in sorted(found.items())}


def _needed(space: Globals) -> Iterable[str]:
    """Yield the names of modules that importing this one imports, itself left out."""
    parts = str(space.get("__name__")).split(".")
    yield from (".".join(parts[:length]) for length in range(1, len(parts)))
    package = space.get("__package__") or ""
    for module, attribute in source_of(space).needs:
        absolute = importlib.util.resolve_name(module, package) if package or not module.startswith(".") else ""
        above = absolute.split(".")
        yield from (".".join(above[:length]) for length in range(1, len(above) + 1))
        if attribute is not None:
            yield f"{absolute}.{attribute}"


def _decoded(text: bytes) -> str:
    return text.decode(tokenize.detect_encoding(io.BytesIO(text).readline)[0])
