"""Source digests of steps that declare a version: what they would be keyed on if they did not.

A declared `version` says that the output means the same while the number stays; this digest is recorded beside it, so
that a difference shows as drift. Unlike `marin.graph.code.closure` it only reads: files are found and parsed, never
imported, because planning must not load torch. It follows names and type hints (whose classes bring their methods) from
the step to every definition of its own package. Of marin itself only the rooms that decide values are followed: how
bytes are stored and work is scheduled changes no result.
"""

import ast
import functools
import hashlib
import importlib.util
import json
import os
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeAlias

from marin.graph.code.loaded import is_first_party_file
from marin.graph.code.piece import Import
from marin.graph.code.source import normal_form, references

Stamps: TypeAlias = dict[str, tuple[str | int, ...]]

_known: dict[tuple[str, str], tuple["SourceDigest | None", Stamps]] = {}
_read: Stamps = {}
"""What is remembered of modules was read from these files."""

_MOST_REEXPORTS = 50  # a circle of them ends somewhere
DECIDING_ROOMS = ("data", "evaluate", "export", "model", "steps", "train")


@dataclass(frozen=True)
class SourceDigest:
    """What the source of a step is: one digest, and for each definition its own and its text."""

    digest: str
    definitions: dict[str, str]
    """`module.name` to the digest of its normal form."""
    texts: dict[str, str]
    """`module.name` to its source text."""
    modules: dict[str, str]
    """Module name to its whole text."""


class Place(NamedTuple):
    """A definition, or a module when `name` is empty."""

    module: str
    name: str


@dataclass(frozen=True)
class _Module:
    """The top level of one file, unexecuted."""

    name: str
    package: str
    text: str
    lines: tuple[str, ...]
    definitions: dict[str, tuple[ast.stmt, ...]]
    imports: dict[str, Import]
    stars: tuple[str, ...]


class _Definition(NamedTuple):
    """What counts of a definition, as a digest; its text; and the definitions that it names."""

    form: str
    text: str
    reached: tuple[Place, ...]


def source_digest(module: str, name: str) -> SourceDigest | None:
    """Return the source digest of the class `name` of `module` with all that it reaches; None where no file has it.

    Remembered until a file that was read changes.
    """
    known = _known.get((module, name))
    if known is None or known[1] != _stamps(known[1]):
        if _read != _stamps(_read):
            _read.clear()
            _module.cache_clear()
            _member.cache_clear()
            _definition.cache_clear()
        known = _known[module, name] = _computed(module, name)
    return known[0]


def _computed(module: str, name: str) -> tuple[SourceDigest | None, Stamps]:
    found = _module(module)
    if found is None or name not in found.definitions:
        return None, {}
    waiting = deque([Place(module, name)])
    met = {waiting[0]: None}
    forms: dict[str, str] = {}
    texts: dict[str, str] = {}
    homes: dict[str, _Module] = {}
    while waiting:
        place = waiting.popleft()
        homes[place.module] = _home(place.module)
        shown = f"{place.module}.{place.name}"
        forms[shown], texts[shown], reached = _definition(place)
        for each in reached:
            if each not in met:
                met[each] = None
                waiting.append(each)
    # Modules' names stay out: a moved definition is the same definition.
    counted = sorted([shown.rpartition(".")[2], form] for shown, form in forms.items())
    modules = {place: home.text for place, home in homes.items()}
    return SourceDigest(_digest(counted), forms, texts, modules), _stamps(homes)


@functools.lru_cache(maxsize=65536)
def _definition(place: Place) -> _Definition:
    """Look at a definition; many steps reach the same ones."""
    home = _home(place.module)
    statements = home.definitions[place.name]
    form = _digest([normal_form(statement) for statement in statements])
    text = "\n".join(_segment(home.lines, statement) for statement in statements)
    reached = dict.fromkeys(each for statement in statements for each in _reached(statement, home))
    return _Definition(form, text, tuple(reached))


def _segment(lines: Sequence[str], statement: ast.stmt) -> str:
    """Return the text of a statement, as `ast.get_source_segment` does, which splits the whole module each time."""
    assert statement.end_lineno is not None
    *whole, last = lines[statement.lineno - 1 : statement.end_lineno]
    if not statement.col_offset:
        return "".join(whole) + last.encode()[: statement.end_col_offset].decode()
    held = "".join([*whole, last])
    moved = ast.Expr(
        ast.Constant(None),
        lineno=1,
        end_lineno=statement.end_lineno - statement.lineno + 1,
        col_offset=statement.col_offset,
        end_col_offset=statement.end_col_offset,
    )
    return ast.get_source_segment(held, moved, padded=True) or ""


def _stamps(modules: Iterable[str]) -> Stamps:
    """Return what changes whenever a module's file does."""
    return {module: _stamp(_file(module)) for module in modules}


def _stamp(file: Path | None) -> tuple[str | int, ...]:
    try:
        status = os.stat(file) if file is not None else None
    except OSError:
        status = None
    if status is None:
        return ()
    return str(file), status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


def _reached(statement: ast.stmt, home: _Module) -> Iterator[Place]:
    """Yield the definitions that a statement names."""
    local = {each.name: each for each in references(statement).imports}
    for node in ast.walk(statement):
        if isinstance(node, ast.Name | ast.Attribute) and (chain := _chain(node)):
            found = _target(chain, home, local)
            if found is not None:
                yield found


def _target(chain: tuple[str, ...], home: _Module, local: dict[str, Import]) -> Place | None:
    """Return the definition that a dotted name stands for; None for a library's, a builtin, or a local variable."""
    name, *rest = chain
    found = _imported(local[name], home.package) if name in local else _member(home.name, name)
    for attribute in rest:
        if found is None or found.name:
            break
        found = _member(found.module, attribute)
    return found if found is not None and found.name else None


def _imported(bound: Import, package: str, depth: int = 0) -> Place | None:
    """Return what an import binds."""
    module = importlib.util.resolve_name(bound.module, package)
    if bound.attribute is None:
        return Place(bound.name if bound.top else module, "")
    return _member(module, bound.attribute, depth)


@functools.lru_cache(maxsize=65536)
def _member(module: str, name: str, depth: int = 0) -> Place | None:
    """Return what a name of a module stands for, following re-exports: a definition or a module."""
    home = _module(module) if depth < _MOST_REEXPORTS else None
    if home is not None:
        if name in home.definitions:
            return Place(module, name)
        if name in home.imports:
            return _imported(home.imports[name], home.package, depth + 1)
        for star in home.stars:
            if found := _member(importlib.util.resolve_name(star, home.package), name, depth + 1):
                return found
        if home.package != module:  # only a package has modules below it
            return None
    below = f"{module}.{name}"
    return Place(below, "") if _file(below) is not None else None


def _home(name: str) -> _Module:
    found = _module(name)
    assert found is not None, f"{name} had a definition, and cannot be read"
    return found


@functools.lru_cache(maxsize=4096)
def _module(name: str) -> _Module | None:
    """Read a module that counts; None for libraries and for the rooms of marin that decide no value."""
    file = _file(name)
    _read[name] = _stamp(file)
    if file is None:
        return None
    text = file.read_text(encoding="utf-8")
    definitions: dict[str, tuple[ast.stmt, ...]] = {}
    imported: list[Import] = []
    for statement in _top_level(ast.parse(text).body):
        imported += references(statement).imports if isinstance(statement, ast.Import | ast.ImportFrom) else ()
        for bound in _bound(statement):
            definitions[bound] = (*definitions.get(bound, ()), statement)
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    named = {each.name: each for each in imported if each.attribute != "*"}
    stars = tuple(each.module for each in imported if each.attribute == "*")
    lines = tuple(f"{line}\n" for line in text.split("\n"))
    return _Module(name, package, text, lines, definitions, named, stars)


def _file(name: str) -> Path | None:
    """Return the file of a module without importing it or its packages."""
    top, *parts = name.split(".")
    if top == "marin" and (not parts or parts[0] not in DECIDING_ROOMS):
        return None
    loaded = sys.modules.get(top)
    spec = loaded.__spec__ if loaded is not None else importlib.util.find_spec(top)
    origin = spec.origin if spec is not None else getattr(loaded, "__file__", None)
    folders = spec.submodule_search_locations if spec is not None else None
    places = [Path(folder).joinpath(*parts) for folder in folders or ()]
    found = [file for place in places for file in (place.with_suffix(".py"), place / "__init__.py") if file.is_file()]
    if not parts:
        found = [Path(origin)] if origin and origin.endswith(".py") else []
    counts = found and (top == "marin" or is_first_party_file(str(found[0])))
    return found[0] if counts else None


def _top_level(statements: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a module, those inside `if`, `try` and `with` too."""
    for statement in statements:
        yield statement
        for block in ("body", "orelse", "finalbody"):
            if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield from _top_level(getattr(statement, block, []))
        for handler in getattr(statement, "handlers", []):
            yield from _top_level(handler.body)


def _bound(statement: ast.stmt) -> list[str]:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [statement.name]
    if isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        return [node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)]
    return []


def _chain(node: ast.AST) -> tuple[str, ...] | None:
    if isinstance(node, ast.Name):
        return (node.id,)
    if isinstance(node, ast.Attribute) and (before := _chain(node.value)):
        return (*before, node.attr)
    return None


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, separators=(",", ":")).encode("utf-8", "surrogatepass")).hexdigest()
