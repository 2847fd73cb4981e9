"""Source text in a normal form: what a definition does, whatever it looks like.

Comments, formatting, docstrings and type hints do not count, and the form is the same on every CPython we support (a
walk over node types and non-empty fields; `ast.dump` and bytecode differ between minor versions). It imports the
standard library alone and never executes what it reads.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

Form: TypeAlias = str | list["Form"]

_UNCOUNTED = frozenset(
    {"ctx", "type_comment", "annotation", "returns", "type_params", "kind", "type_ignores", "simple"}
)
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_ASSIGNMENTS = (ast.Assign, ast.AnnAssign, ast.AugAssign)
_OPEN_BLOCKS = (ast.If, ast.Try, ast.TryStar)
"""Blocks whose statements each stand for themselves; a loop or a `with` counts as a whole."""
_WHOLE_BLOCKS = (ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith, ast.Match)
_DYNAMIC = frozenset({"getattr", "eval", "exec", "globals", "locals", "vars", "__import__"})
_ADDING = {"add", "append", "appendleft", "extend", "insert", "setdefault", "update"}
_CHANGING = _ADDING | {"clear", "discard", "pop", "popitem", "popleft", "remove"}


class Import(NamedTuple):
    """`name` stands for `attribute` of `module`, or for the module itself when `attribute` is None."""

    name: str
    module: str
    """With its leading dots."""
    attribute: str | None
    top: bool = False
    """`import a.b` binds `a`: the name is the package's."""


@dataclass(frozen=True)
class ModuleSource:
    """What the top level of one file says."""

    definitions: dict[str, tuple[ast.stmt, ...]]
    """What binds or fills a name, in order: functions, classes, assignments, loops, calls of its methods."""
    imports: dict[str, Import]
    """`from x import y` by the name bound."""
    stars: tuple[str, ...]
    """Modules of `from x import *`."""
    changed: frozenset[str]
    """Names that a function changes in place or by `global`: state, such as a cache."""
    by_line: dict[int, tuple[ast.AST, ...]]
    """Every definition and lambda by its first line."""
    needs: tuple[tuple[str, str | None], ...]
    """All that is imported anywhere, as module and attribute."""


NO_SOURCE = ModuleSource({}, {}, (), frozenset(), {}, ())


def span(node: ast.AST) -> tuple[int, int]:
    """Return the first and last line of a node."""
    return first_line(node), getattr(node, "end_lineno", None) or first_line(node)


def parse(text: str | bytes) -> ModuleSource:
    """Return what a source text says; SyntaxError when it is none."""
    tree = ast.parse(text)
    definitions: dict[str, tuple[ast.stmt, ...]] = {}
    imported: list[Import] = []
    for statement in _top_level(tree.body):
        inside = ast.walk(statement) if isinstance(statement, _WHOLE_BLOCKS) else [statement]
        imported += [each for node in inside for each in _imports(node)]
        for name in dict.fromkeys(_bound(statement)):
            definitions[name] = (*definitions.get(name, ()), statement)
    by_line: dict[int, tuple[ast.AST, ...]] = {}
    changed: set[str] = set()
    needs: list[tuple[str, str | None]] = []
    for node in ast.walk(tree):
        needs += [(each.module, each.attribute) for each in _imports(node)]
        if isinstance(node, (*_DEFINITIONS, ast.Lambda)):
            line = first_line(node)
            by_line[line] = (*by_line.get(line, ()), node)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            changed.update(_changed(node))
    named = {each.name: each for each in imported if each.attribute not in (None, "*")}
    stars = tuple(each.module for each in imported if each.attribute == "*")
    return ModuleSource(definitions, named, stars, frozenset(changed), by_line, tuple(dict.fromkeys(needs)))


def first_line(node: ast.AST) -> int:
    """Return the line where a definition begins, its decorators included, as code objects count."""
    lines: list[int] = [decorator.lineno for decorator in getattr(node, "decorator_list", ())]
    return min([*lines, getattr(node, "lineno", 0)])


def _top_level(statements: list[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in statements:
        yield statement
        if isinstance(statement, _OPEN_BLOCKS):
            yield from _top_level(statement.body)
            yield from _top_level(statement.orelse)
        if isinstance(statement, ast.Try | ast.TryStar):
            yield from _top_level([inner for handler in statement.handlers for inner in handler.body])
            yield from _top_level(statement.finalbody)


def _bound(statement: ast.AST) -> Iterator[str]:
    """Yield the names that a statement binds or fills."""
    if isinstance(statement, _DEFINITIONS):
        yield statement.name
        # `@convert.register` adds to `convert`.
        yield from (name for decorator in statement.decorator_list if (name := _receiver(decorator)))
    elif isinstance(statement, _ASSIGNMENTS):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        yield from (node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name))
    elif isinstance(statement, ast.Expr) and (name := _receiver(statement.value)):
        yield name  # `TABLE.update(...)`
    elif isinstance(statement, _WHOLE_BLOCKS):
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                yield node.id
            elif node is not statement:
                yield from _bound(node)


def _receiver(node: ast.AST) -> str | None:
    """Return `x` of `x.method` and `x.method(...)`."""
    if isinstance(node, ast.Call):
        node = node.func
    chain = _chain(node)
    return chain[0] if chain and len(chain) > 1 else None


def _changed(function: ast.AST) -> Iterator[str]:
    """Yield the names that a function assigns by `global`, or changes in place."""
    for node in ast.walk(function):
        if isinstance(node, ast.Global):
            yield from node.names
        elif isinstance(node, ast.Subscript | ast.Attribute) and not isinstance(node.ctx, ast.Load):
            inner: ast.AST = node
            while isinstance(inner, ast.Subscript | ast.Attribute):
                inner = inner.value
            if isinstance(inner, ast.Name):
                yield inner.id
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _CHANGING:
            yield from (name for name in [_receiver(node)] if name)


def _imports(node: ast.AST) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            top = alias.asname is None
            yield Import(alias.name.split(".")[0] if top else str(alias.asname), alias.name, None, top)
    elif isinstance(node, ast.ImportFrom):
        module = "." * node.level + (node.module or "")
        for alias in node.names:
            yield Import(alias.asname or alias.name, module, alias.name)


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
    imports: tuple[Import, ...]
    """Imports inside the definition."""
    untracked: tuple[str, ...]
    """Calls such as `getattr(x, name)` by line, whose target no reader can know."""


def references(node: ast.AST) -> References:
    """Return what a definition mentions, type hints left out."""
    names: dict[tuple[str, ...], None] = {}
    imports: dict[Import, None] = {}
    untracked: list[str] = []
    for child in _counted_nodes(node):
        imports.update(dict.fromkeys(_imports(child)))
        if isinstance(child, ast.Name | ast.Attribute) and (chain := _chain(child)):
            names.setdefault(chain)
            if chain[-1] == "import_module" or (len(chain) == 1 and chain[0] in _DYNAMIC):
                untracked.append(f"{chain[-1]} in line {child.lineno}")
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
