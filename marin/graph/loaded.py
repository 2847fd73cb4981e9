"""Loaded modules: whose they are, their source as it was loaded, and where their names come from.

Invariant: the source stands for the code in memory. A file is read once for each time its module is loaded, so a run
keeps the digests it began with whatever is edited meanwhile; and a function whose loaded code is not what the file
says now is refused, never fingerprinted as something that does not run. It imports first-party modules alone.
"""

import importlib
import importlib.util
import os
import sys
import sysconfig
from collections.abc import Mapping
from functools import lru_cache
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, TypeAlias

from marin.base.errors import CanonicalError
from marin.graph.source import NO_SOURCE, ModuleSource, parse

Globals: TypeAlias = Mapping[str, Any]  # Any: a module's namespace holds anything
Codes: TypeAlias = frozenset[object] | None

_INSTALLED = {"site-packages", "dist-packages"}
_read: dict[str, tuple[object, ModuleSource, Codes, bytes]] = {}
"""By file: what it was loaded as, what it says, its code objects (None where an import hook rewrites them), and its bytes."""


def is_first_party(space: Globals) -> bool:
    """Whether the module of these globals is code that the user edits."""
    name, file = space.get("__name__") or "", space.get("__file__")
    if name.split(".")[0] == "marin":
        return False
    return is_first_party_file(file) and file.endswith(".py") if file else name == "__main__"


@lru_cache(maxsize=65536)
def is_first_party_file(path: str) -> bool:
    """Whether a file or folder is neither installed nor the standard library's."""
    standard = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))
    found = Path(path)
    return not _INSTALLED.intersection(found.parts) and not any(found.is_relative_to(folder) for folder in standard)


def source_of(space: Globals) -> ModuleSource:
    """Return what the file of a module said when it was loaded; nothing for a notebook's cells."""
    return _source_and_codes(space)[0]


def bytes_of(space: Globals) -> bytes:
    """Return the bytes of a module's file as it was loaded; empty for a notebook's cells."""
    return _source_and_codes(space)[2]


def stands_in_its_file(function: FunctionType) -> bool:
    """Whether a function was compiled from its module's file; generated code and notebook cells were not."""
    file = function.__globals__.get("__file__")
    return file is not None and os.path.abspath(function.__code__.co_filename) == os.path.abspath(file)


def check_loaded(function: FunctionType) -> None:
    """Raise CanonicalError if a function in memory is not what its file says."""
    space, code = function.__globals__, function.__code__
    codes = _source_and_codes(space)[1] if stands_in_its_file(function) else None
    if codes is not None and _code_key(code) not in codes:
        raise CanonicalError(
            f"{code.co_filename} was edited after it was imported, so the code that runs is not what it says",
            where=f"{space.get('__name__')}.{code.co_qualname}",
            hint=f"start Python again, or importlib.reload({space.get('__name__')})",
        )


def origin(space: Globals, name: str) -> tuple[Globals, str] | None:
    """Return the module that binds `name` and the name there, following `from x import y`; None for a library's."""
    for _ in range(100):  # a circle of imports ends somewhere
        found = None if name in source_of(space).definitions else _imported(space, name)
        if found is None:
            return space, name
        space, name = found
        if not is_first_party(space):
            return None
    return space, name


def imported_origin(space: Globals, name: str) -> tuple[Globals, str] | None:
    """Return where a name comes from that is both bound and imported, as in `try: from x import y`."""
    found = _imported(space, name)
    return origin(*found) if found and is_first_party(found[0]) else None


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


def _imported(space: Globals, name: str) -> tuple[Globals, str] | None:
    source, package = source_of(space), space.get("__package__") or ""
    asked = [(source.imports[name].module, str(source.imports[name].attribute))] if name in source.imports else []
    for module, attribute in [*asked, *((star, name) for star in source.stars)]:
        found = sys.modules.get(importlib.util.resolve_name(module, package))
        if found is not None and attribute in vars(found):
            return vars(found), attribute
    return None


def _source_and_codes(space: Globals) -> tuple[ModuleSource, Codes, bytes]:
    file = space.get("__file__")
    if not file or not file.endswith(".py"):
        return NO_SOURCE, None, b""
    loaded_as = space.get("__spec__") or space  # a new spec is made at every import and reload; a script has none
    known = _read.get(file)
    if known is None or known[0] is not loaded_as:
        try:
            text = Path(file).read_bytes()
            source = parse(text)
        except (OSError, SyntaxError) as error:
            raise CanonicalError(
                f"{file} cannot be read again, so its code cannot be fingerprinted: {error}",
                where=str(space.get("__name__")),
                hint="put the file back as it was, or start Python again",
            ) from error
        plain = type(space.get("__loader__")) is SourceFileLoader
        known = _read[file] = (loaded_as, source, _codes(text, file) if plain else None, text)
    return known[1:]


def _codes(text: bytes, file: str) -> frozenset[object]:
    found: set[object] = set()
    waiting = [compile(text, file, "exec", dont_inherit=True)]
    while waiting:
        inside = [constant for constant in waiting.pop().co_consts if isinstance(constant, CodeType)]
        found.update(map(_code_key, inside))
        waiting += inside
    return frozenset(found)


def _code_key(code: CodeType) -> object:
    constants = tuple(map(_constant_key, code.co_consts))
    return (code.co_qualname, code.co_firstlineno, code.co_code, code.co_names, constants)


def _constant_key(value: object) -> object:
    if isinstance(value, CodeType):
        return _code_key(value)
    if isinstance(value, tuple):
        return tuple(map(_constant_key, value))
    if isinstance(value, frozenset):
        return frozenset(map(_constant_key, value))
    return (type(value), repr(value))
