"""Passages: the source text behind a code digest, for explanations and for `repro`.

Nothing is computed until somebody asks. Each text is what stood in the file when its module was loaded, never what
stands there now.
"""

import importlib.util
import io
import re
import tokenize
from collections.abc import Iterable
from typing import TypeAlias

from marin.graph.code.loaded import Globals, Place, home_of, is_first_party, space_named

_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
"""A line as Python's tokenizer counts them: a form feed ends none."""


Places: TypeAlias = Iterable[tuple[str, Iterable[tuple[Globals, Place]]]]
"""Names of definitions, and where each stands."""


def texts(places: Places) -> dict[str, str]:
    """Return the text of each definition that has one, whole lines, its decorators included."""
    lines: dict[int, list[str]] = {}
    found: dict[str, str] = {}
    for name, stands in places:
        spans = dict.fromkeys(
            (place.text, place.piece.first, place.piece.last) for _, place in stands if place.piece.kind != "condition"
        )
        for text, first, last in spans:
            if id(text) not in lines:
                lines[id(text)] = _LINE.findall(_decoded(text.data))
            found[name] = found.get(name, "") + "".join(lines[id(text)][first - 1 : last])
    return found


def modules(places: Places) -> dict[str, str]:
    """Return the text of the modules of these definitions, of their packages, and of all first-party code they import.

    Of a notebook it is the cells that are reached, in the order in which they are.
    """
    found: dict[str, dict[bytes, None]] = {}
    waiting: list[Globals] = []
    for space, place in (each for _, stands in places for each in stands):
        name = str(space.get("__name__"))
        if name not in found:
            waiting.append(space)
        found.setdefault(name, {})[place.text.data] = None
    while waiting:
        for name in _needed(waiting.pop()):
            space = space_named(name)
            text = home_of(space).text if is_first_party(space) else None
            if name not in found and text is not None:
                found[name] = {text.data: None}
                waiting.append(space)
    return {name: "\n".join(map(_decoded, found[name])) for name in sorted(found)}


def _needed(space: Globals) -> Iterable[str]:
    """Yield the names of modules that importing this one imports, itself left out."""
    parts = str(space.get("__name__")).split(".")
    yield from (".".join(parts[:length]) for length in range(1, len(parts)))
    package = space.get("__package__") or ""
    for module, attribute in home_of(space).needs:
        absolute = importlib.util.resolve_name(module, package) if package or not module.startswith(".") else ""
        above = absolute.split(".")
        yield from (".".join(above[:length]) for length in range(1, len(above) + 1))
        if attribute is not None:
            yield f"{absolute}.{attribute}"


def _decoded(text: bytes) -> str:
    return text.decode(tokenize.detect_encoding(io.BytesIO(text).readline)[0])
