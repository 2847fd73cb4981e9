"""Source text in a normal form: what a definition does, whatever it looks like.

Comments, formatting, docstrings and type hints do not count, and the form is the same on every CPython we support (a
walk over node types and non-empty fields; `ast.dump` and bytecode differ between minor versions). It imports the
standard library alone and never executes what it reads.
"""

import ast
import functools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

Form: TypeAlias = str | list["Form"]

_UNCOUNTED = frozenset(
    {"ctx", "type_comment", "annotation", "returns", "type_params", "kind", "type_ignores", "simple"}
)
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_DYNAMIC = frozenset({"getattr", "eval", "exec", "globals", "locals", "vars", "__import__", "import_module"})


@dataclass(frozen=True)
class ModuleSource:
    """The top-level definitions of one file."""

    definitions: dict[str, tuple[ast.stmt, ...]]
    """Functions, classes and assignments by the name they bind, in order: a name can be bound several times."""
    by_line: dict[int, ast.AST]
    """Every function and lambda by its first line, for those that no name reaches."""


def module_source(path: str) -> ModuleSource:
    """Return the definitions of a file; parsed once for each (path, time, size)."""
    status = os.stat(path)
    return _parsed(path, status.st_mtime_ns, status.st_size)


@functools.lru_cache(maxsize=4096)
def _parsed(path: str, modified_ns: int, size: int) -> ModuleSource:
    with open(path, "rb") as file:
        return parse(file.read())


def parse(text: str | bytes) -> ModuleSource:
    """Return the definitions of a source text; SyntaxError when it is none."""
    tree = ast.parse(text)
    definitions: dict[str, tuple[ast.stmt, ...]] = {}
    for statement in _top_level(tree.body):
        for name in _bound(statement):
            definitions[name] = (*definitions.get(name, ()), statement)
    by_line: dict[int, ast.AST] = {}
    for node in ast.walk(tree):
        if isinstance(node, (*_DEFINITIONS, ast.Lambda)):
            by_line.setdefault(first_line(node), node)
    return ModuleSource(definitions, by_line)


def first_line(node: ast.AST) -> int:
    """Return the line where a definition begins, its decorators included, as code objects count."""
    lines: list[int] = [decorator.lineno for decorator in getattr(node, "decorator_list", ())]
    return min([*lines, getattr(node, "lineno", 0)])


def _top_level(statements: list[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in statements:
        yield statement
        for block in ("body", "orelse", "finalbody"):
            if isinstance(statement, ast.If | ast.Try | ast.With):
                yield from _top_level(getattr(statement, block, []))


def _bound(statement: ast.stmt) -> Iterator[str]:
    if isinstance(statement, _DEFINITIONS):
        yield statement.name
    elif isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        for target in targets:
            yield from (node.id for node in ast.walk(target) if isinstance(node, ast.Name))


def normal_form(node: Any) -> Form:  # Any: a node, a list of nodes, or a field's plain value
    """Return what counts of a syntax tree as nested lists of text."""
    if isinstance(node, list):
        return [normal_form(member) for member in node]
    if isinstance(node, ast.Constant):
        return ["Constant", type(node.value).__name__, _constant(node.value)]
    if not isinstance(node, ast.AST):
        return f"{type(node).__name__}:{node}"
    form: list[Form] = [type(node).__name__]
    for name in node._fields:
        value = getattr(node, name, None)
        if name in _UNCOUNTED or value is None or value == []:
            continue
        if name == "body" and isinstance(value, list):
            value = _without_docstrings(value)
        if isinstance(node, ast.JoinedStr):
            value = _without_empty_text(value)
        form.append([name, normal_form(value)])
    return form


def _constant(value: object) -> Form:
    if isinstance(value, float):
        return value.hex()
    if isinstance(value, complex):
        return [value.real.hex(), value.imag.hex()]
    if isinstance(value, bytes):
        return value.hex()
    return str(value)


def _without_docstrings(body: list[Any]) -> list[Any]:
    """Drop text that stands alone as a statement: docstrings of functions, classes and attributes."""
    return [
        statement
        for statement in body
        if not (
            isinstance(statement, ast.Expr)
            and isinstance(statement.value, ast.Constant)
            and isinstance(statement.value.value, str)
        )
    ]


def _without_empty_text(parts: list[Any]) -> list[Any]:
    """Drop the empty constants that CPython 3.12 puts into f-strings and others do not."""
    return [part for part in parts if not (isinstance(part, ast.Constant) and part.value == "")]


@dataclass(frozen=True)
class References:
    """What a definition mentions: dotted names, imports of its own, and what cannot be followed."""

    names: tuple[tuple[str, ...], ...]
    """`a.b.c` as ("a", "b", "c"), each once, in the order of first mention."""
    imports: tuple[tuple[str, str | None], ...]
    """(module, attribute) of imports inside the definition; None for the module itself."""
    untracked: tuple[str, ...]
    """Calls such as `getattr(x, name)` by line, whose target no reader can know."""


def references(node: ast.AST) -> References:
    """Return what a definition mentions, type hints left out."""
    names: dict[tuple[str, ...], None] = {}
    imports: dict[tuple[str, str | None], None] = {}
    untracked: list[str] = []
    for child in _counted_nodes(node):
        if isinstance(child, ast.Name | ast.Attribute) and (chain := _chain(child)):
            names.setdefault(chain)
            if chain[-1] in _DYNAMIC:
                untracked.append(f"{chain[-1]} in line {child.lineno}")
        elif isinstance(child, ast.Import):
            imports.update({(alias.name, None): None for alias in child.names})
        elif isinstance(child, ast.ImportFrom):
            module = "." * child.level + (child.module or "")
            imports.update({(module, alias.name): None for alias in child.names})
    return References(tuple(names), tuple(imports), tuple(untracked))


def _counted_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Walk in source order, the longest dotted names first, without type hints."""
    yield node
    if isinstance(node, ast.Attribute) and _chain(node):
        return
    for name, value in ast.iter_fields(node):
        if name in _UNCOUNTED:
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _counted_nodes(child)


def _chain(node: ast.AST) -> tuple[str, ...] | None:
    if isinstance(node, ast.Name):
        return (node.id,)
    if isinstance(node, ast.Attribute) and (before := _chain(node.value)):
        return (*before, node.attr)
    return None
