"""Loaded modules: whose they are, their source as it was loaded, and where their names come from.

Invariant: the source stands for the code in memory. A file is read once for each time its module is loaded, so a run
keeps the digests it began with whatever is edited meanwhile; and a function whose loaded code is not what the file
says now is refused, never fingerprinted as something that does not run. It imports first-party modules alone.
"""

import importlib
import importlib.util
import linecache
import os
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, NamedTuple, TypeAlias

from marin.base.errors import CanonicalError
from marin.graph.code.parsed import Memo, code_key, default_memo, parsed
from marin.graph.code.piece import Import, Piece
from marin.graph.code.source import ModuleSource, parse

Globals: TypeAlias = Mapping[str, Any]  # Any: a module's namespace holds anything

_INSTALLED = {"site-packages", "dist-packages"}


@dataclass(frozen=True, eq=False)
class Text:
    """One source text as it was loaded: a file, or a cell of a notebook."""

    data: bytes
    source: ModuleSource
    codes: frozenset[str] | None = None
    """Keys of the code that it compiles to; None where an import hook rewrites it."""


class Place(NamedTuple):
    """Where a piece stands."""

    text: Text
    number: int

    @property
    def piece(self) -> Piece:
        """The piece."""
        return self.text.source.pieces[self.number]


@dataclass(frozen=True, eq=False)
class Home:
    """What a module says: its file, or all cells of a notebook."""

    definitions: Mapping[str, Sequence[Place]]
    touching: Mapping[str, Sequence[Place]]
    imports: Mapping[str, Sequence[Import]]
    stars: Sequence[str]
    handed: frozenset[str]
    needs: Sequence[tuple[str, str | None]]
    effects: Sequence[tuple[str, Place]]
    """Statements that are executed at import for what they do elsewhere, and whom they call or change; none of a
    notebook, where one calls things to look at them."""
    text: Text | None
    """The file's; None in a notebook."""
    length: int = 0
    """How many cells there were."""
    libraries: dict[str, list[str]] = field(default_factory=dict)
    """Imports of names from where nothing is followed, as far as they were asked for."""


NOWHERE = Home({}, {}, {}, (), frozenset(), (), (), None)

_homes: dict[str, tuple[object, Home]] = {}
"""By file: what it was loaded as, and what it says."""
_cells: dict[str, Text] = {}
"""By text: cells of notebooks."""
_memo = Memo(None)


def is_first_party(space: Globals) -> bool:
    """Whether the module of these globals is code that the user edits."""
    name, file = space.get("__name__"), space.get("__file__")
    if isinstance(file, str):
        return _is_own_source(str(name), file)
    if file:  # of a type that Python's own imports never give
        return False
    folders = [str(folder) for folder in space.get("__path__") or ()]  # of a package without `__init__.py`
    return name == "__main__" or any(map(is_first_party_file, folders))


@lru_cache(maxsize=65536)
def _is_own_source(name: str, file: str) -> bool:
    return name.split(".", 1)[0] != "marin" and file.endswith(".py") and is_first_party_file(file)


@lru_cache(maxsize=65536)
def is_first_party_file(path: str) -> bool:
    """Whether a file or folder is neither installed nor the standard library's."""
    found = Path(path)
    return not _INSTALLED.intersection(found.parts) and not any(found.is_relative_to(each) for each in _standard())


@lru_cache(maxsize=1)
def _standard() -> tuple[str, str]:
    return sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")


def space_named(module: str) -> Globals:
    """Return the globals of a module; empty when it is not loaded."""
    space = getattr(sys.modules.get(module), "__dict__", None)
    return space if isinstance(space, dict) else {}


def space_of(kind: type) -> Globals:
    """Return the globals of the module that a class names as its own; empty when it is not loaded."""
    return space_named(kind.__module__)


def home_of(space: Globals) -> Home:
    """Return what a module said when it was loaded."""
    file = space.get("__file__")
    if not file:
        return _notebook(space)
    if not file.endswith(".py"):
        return NOWHERE
    loaded_as = space.get("__spec__") or space  # a new spec is made at every import and reload; a script has none
    known = _homes.get(file)
    if known is None or known[0] is not loaded_as:
        known = _homes[file] = loaded_as, _read(file, space)
    return known[1]


def keep_parsed() -> None:
    """Remember on disk what was parsed."""
    _memo.keep()


def memo() -> Memo:
    """Return the memory of parsed files, where the environment says that it is."""
    global _memo  # noqa: PLW0603
    path = default_memo()
    if _memo.path != path:
        _memo = Memo(path)
    return _memo


def _read(file: str, space: Globals) -> Home:
    try:
        data = Path(file).read_bytes()
        found = parsed(data, memo())
    except (OSError, SyntaxError, ValueError) as error:
        raise CanonicalError(
            f"{file} cannot be read again, so its code cannot be fingerprinted: {error}",
            where=str(space.get("__name__")),
            hint="put the file back as it was, or start Python again",
        ) from error
    plain = type(space.get("__loader__")) is SourceFileLoader
    return _home([Text(data, found.source, found.codes if plain else None)])


def _home(texts: Sequence[Text]) -> Home:
    """Return what texts say together, where a later one binds names anew."""
    definitions: dict[str, list[Place]] = {}
    touching: dict[str, list[Place]] = {}
    imports: dict[str, Sequence[Import]] = {}
    for text in texts:
        source = text.source
        for name in source.imports:
            definitions.pop(name, None)
        for name, numbers in source.definitions.items():
            if name in definitions and not _fills(name, source.pieces[numbers[0]]):
                definitions[name] = []
            definitions.setdefault(name, []).extend(Place(text, number) for number in numbers)
        for name, numbers in source.touching.items():
            touching.setdefault(name, []).extend(Place(text, number) for number in numbers)
        imports.update(source.imports)
    sources = [text.source for text in texts]
    return Home(
        definitions,
        touching,
        imports,
        tuple(star for source in sources for star in source.stars),
        frozenset().union(*(source.handed for source in sources)),
        tuple(need for source in sources for need in source.needs),
        tuple((name, Place(text, number)) for text in texts for name, number in text.source.effects),
        texts[0] if texts else None,
    )


def _fills(name: str, piece: Piece) -> bool:
    """Whether a piece adds to what a name stands for rather than binding it anew."""
    if piece.kind in {"function", "class"}:
        return piece.name != name
    return name in {chain[0] for chain in piece.changes} or (name,) in piece.names


def _notebook(space: Globals) -> Home:
    """Return what the cells say that were executed so far: IPython keeps them in `In`."""
    cells = space.get("In")
    if not isinstance(cells, list):
        return NOWHERE
    key = f"notebook {id(cells)}"
    known = _homes.get(key)
    if known is None or known[0] is not cells or known[1].length != len(cells):
        texts = [text for cell in cells if isinstance(cell, str) and (text := _cell(cell)) is not None]
        known = _homes[key] = cells, replace(_home(texts), text=None, effects=(), length=len(cells), libraries={})
    return known[1]


def _cell(text: str) -> Text | None:
    """Return a cell as a text; None when it is no Python."""
    if text not in _cells:
        try:
            _cells[text] = Text(text.encode(), parse(text))
        except (SyntaxError, ValueError):
            return None
    return _cells[text]


def stands_in_its_file(function: FunctionType) -> bool:
    """Whether a function was compiled from its module's file; generated code and notebook cells were not."""
    file, compiled = function.__globals__.get("__file__"), function.__code__.co_filename
    return file is not None and (compiled == file or os.path.abspath(compiled) == os.path.abspath(file))


def text_of(function: FunctionType) -> Text | None:
    """Return the text that a function was compiled from; None when there is none, as for what `exec` made."""
    if stands_in_its_file(function):
        return home_of(function.__globals__).text
    lines = linecache.getlines(function.__code__.co_filename)
    return _cell("".join(lines)) if lines else None


def check_loaded(function: FunctionType) -> None:
    """Raise CanonicalError if a function in memory is not what its file says."""
    space, code = function.__globals__, function.__code__
    text = home_of(space).text if stands_in_its_file(function) else None
    if text is not None and text.codes is not None and code_key(code) not in text.codes:
        raise CanonicalError(
            f"{code.co_filename} was edited after it was imported, so the code that runs is not what it says",
            where=f"{space.get('__name__')}.{code.co_qualname}",
            hint=f"start Python again, or importlib.reload({space.get('__name__')})",
        )


def origin(space: Globals, name: str) -> tuple[Globals, str] | None:
    """Return the module that binds `name` and the name there, following `from x import y`; None for a library's."""
    for _ in range(100):  # a circle of imports ends somewhere
        found = None if name in home_of(space).definitions else imported(space, name)
        if found is None:
            return space, name
        space, name = found
        if not is_first_party(space):
            return None
    return space, name


def imported(space: Globals, name: str) -> tuple[Globals, str] | None:
    """Return where a name comes from that a module imports; None if it does not import it from a loaded module."""
    home, package = home_of(space), space.get("__package__") or ""
    asked = [(each.module, each.attribute) for each in home.imports.get(name, ()) if each.attribute is not None]
    for module, attribute in [*reversed(asked), *((star, name) for star in home.stars)]:
        found = space_named(_absolute(module, package))
        if attribute in found and found[attribute] is space.get(name, found):
            return found, attribute
    return None


def libraries(space: Globals, name: str) -> list[str]:
    """Return what a module imports under a name from where nothing is followed, as written: `json:loads`."""
    home = home_of(space)
    if name not in home.libraries:
        home.libraries[name] = _libraries(home, space.get("__package__") or "", name)
    return home.libraries[name]


def _libraries(home: Home, package: str, name: str) -> list[str]:
    found = []
    for each in home.imports.get(name, ()):
        module = each.name if each.top else _absolute(each.module, package)
        if not is_first_party(space_named(module)):
            found.append(f"{module}:{each.attribute or ''}")
    if name not in home.imports and name not in home.definitions:
        for star in home.stars:
            loaded = space_named(_absolute(star, package))
            if name in loaded and not is_first_party(loaded):
                found.append(f"{star}:{name}")
    return found


def _absolute(module: str, package: str) -> str:
    try:
        return importlib.util.resolve_name(module, package)
    except ImportError:  # a relative import of a script, which failed when it was executed
        return module


def modules_above(space: Globals) -> list[str]:
    """Return the packages of a module, and what it imports when it is imported itself."""
    parts = str(space.get("__name__")).split(".")
    found = [".".join(parts[:length]) for length in range(1, len(parts))]
    home, package = home_of(space), space.get("__package__") or ""
    for each in [each for imports in home.imports.values() for each in imports]:
        module = _absolute(each.module, package)
        found += [module] if each.attribute is None else [module, f"{module}.{each.attribute}"]
    return list(dict.fromkeys([*found, *(_absolute(star, package) for star in home.stars)]))


def first_party_module(name: str, package: str) -> ModuleType | None:
    """Import the module that an import inside a function names; None for libraries, which are left alone.

    Raises ImportError if it is not there.
    """
    absolute = importlib.util.resolve_name(name, package)
    top = absolute.split(".")[0]
    if top == "marin":
        return None
    spec = importlib.util.find_spec(top) if top not in sys.modules else sys.modules[top].__spec__
    if spec is None:
        return sys.modules.get(absolute)
    places = [spec.origin] if spec.has_location else list(spec.submodule_search_locations or ())
    if not places or not is_first_party_file(str(places[0])):
        return None
    return importlib.import_module(absolute)
