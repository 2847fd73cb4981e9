"""Walk: one pass over a syntax tree that writes its normal form and notes what it mentions and changes.

Comments, formatting, docstrings and type hints stay out of a form; hints and docstrings are kept beside it for code
that reads them. The form is the same on every CPython we support: node types and non-empty fields, for `ast.dump` and
bytecode differ between minor versions. It imports the standard library alone and executes nothing of what it reads.
"""

import ast
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, Final, TypeAlias

from marin.graph.code.piece import Chain, Hint, chain_of, constant, digest, imported_by_call, imports_of
from marin.graph.code.scope import Notes, Scope

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda

_UNCOUNTED = {"ctx", "type_comment", "annotation", "returns", "type_params", "kind", "type_ignores", "simple"}
_BY_NAME = {"getattr", "hasattr", "setattr", "delattr"}
_CHANGING = {
    *("add", "append", "appendleft", "extend", "insert", "setdefault", "update", "register"),
    *("clear", "discard", "pop", "popitem", "popleft", "remove", "move_to_end", "sort", "reverse"),
}
_UNKNOWN: Chain = ("?",)


class Walk(Notes):
    """A walk that writes as it goes."""

    def write(self, node: Any) -> None:  # Any: a node of any type
        """Write the form of a node."""
        special = _SPECIAL.get(node.__class__)
        if special is not None:
            special(self, node)
        else:
            self.fields(node)

    def fields(self, node: Any) -> None:  # Any: a node of any type
        """Write a node's type and its fields that hold something."""
        kind = node.__class__
        self.out.append(f"({kind.__name__}")
        for name in _counted(kind):
            value = getattr(node, name, None)
            if value is None or value == []:
                continue
            self.out.append(f" {name}=")
            if isinstance(value, ast.AST):
                self.write(value)
            elif isinstance(value, list):
                self.members(value)
            else:
                self.out.append(constant(value))
        self.out.append(")")

    def members(self, values: list[Any]) -> None:  # Any: nodes, None where a list has a gap, names
        """Write a list; statements without those that do nothing."""
        self.out.append("[")
        if values and isinstance(values[0], ast.stmt):
            self.block(values)
        else:
            for value in values:
                if isinstance(value, ast.AST):
                    self.write(value)
                else:
                    self.out.append(constant(value))
        self.out.append("]")

    def block(self, statements: Iterable[ast.stmt]) -> None:
        """Write statements, without docstrings, `pass` and `...`."""
        for statement in statements:
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                if isinstance(statement.value.value, str):
                    self.events.append(("docs", statement.value.value))
            elif not isinstance(statement, ast.Pass):
                self.write(statement)

    def hint(self, node: ast.AST) -> tuple[str, tuple[Chain, ...]]:
        """Return the form of a type hint and the names in it, which count nowhere else."""
        inner = Walk()
        inner.functions = self.functions
        inner.write(node)
        self.pieces += inner.pieces
        for text in ast.walk(node):
            if isinstance(text, ast.Constant) and isinstance(text.value, str) and (parsed := _expression(text.value)):
                inner.write(parsed)
        return "".join(inner.out), tuple(dict.fromkeys(inner.scope.loads))


@lru_cache(maxsize=1024)
def _counted(kind: type[ast.AST]) -> tuple[str, ...]:
    return tuple(name for name in kind._fields if name not in _UNCOUNTED)


def _expression(text: str) -> ast.AST | None:
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError):
        return None


def _name(walk: Walk, node: ast.Name) -> None:
    walk.out.append(f" {node.id}")
    if isinstance(node.ctx, ast.Load):
        walk.load((node.id,), node.lineno)
    else:
        walk.bind(node.id)


def _attribute(walk: Walk, node: ast.Attribute) -> None:
    chain, loads = chain_of(node), isinstance(node.ctx, ast.Load)
    parts: list[str] = []
    inner: ast.AST = node
    while isinstance(inner, ast.Attribute):
        parts.append(inner.attr)
        inner = inner.value
    walk.mention(parts)
    walk.out.append("(.")
    if chain is None:
        walk.write(inner)
    else:
        walk.out.append(f" {chain[0]}")
        walk.load(chain if loads else chain[:-1], node.lineno)
    walk.out += [f" {part}" for part in reversed(parts)]
    walk.out.append(")")
    if not loads:
        walk.change(node.value, assigned=node.attr)


def _subscript(walk: Walk, node: ast.Subscript) -> None:
    value, key = node.value, node.slice
    if isinstance(value, ast.Call) and chain_of(value.func) == ("globals",) and isinstance(key, ast.Constant):
        walk.out.append(f"(globals {constant(key.value)})")
        if isinstance(node.ctx, ast.Load):
            walk.load((str(key.value),), node.lineno)
        elif walk.functions:
            walk.events.append(("change", (str(key.value),)))
        else:
            walk.bind(str(key.value))
        return
    if not isinstance(node.ctx, ast.Load):
        walk.change(value)
    walk.fields(node)


def _call(walk: Walk, node: ast.Call) -> None:
    function, arguments = node.func, node.args
    head = imported_by_call(node)
    if head is not None:
        walk.out.append(f"(import {head})")
        walk.load((head,), node.lineno)
        return
    named = arguments[1] if len(arguments) > 1 else None
    if (
        isinstance(function, ast.Name)
        and function.id in _BY_NAME
        and isinstance(named, ast.Constant)
        and isinstance(named.value, str)
    ):
        _by_name(walk, node, function.id, named.value)
        return
    if isinstance(function, ast.Attribute) and function.attr in _CHANGING:
        walk.change(function.value)
    walk.fields(node)


def _by_name(walk: Walk, node: ast.Call, called: str, name: str) -> None:
    """Write `getattr(x, "name")` and the like, which mean the attribute that they name."""
    chain = chain_of(node.args[0])
    walk.mention([name])
    if called in {"setattr", "delattr"}:
        walk.change(node.args[0], assigned=name)
    elif chain is not None:
        walk.load((*chain, name), node.lineno)
    walk.out.append(f"(Call {called}")
    walk.members(node.args)
    walk.members(node.keywords)
    walk.out.append(")")


def _definition(walk: Walk, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
    walk.bind(node.name)
    walk.pieces.append(walk.piece(node, "function", lambda each: _function(walk, each)))


def _lambda(walk: Walk, node: ast.Lambda) -> None:
    walk.pieces.append(walk.piece(node, "lambda", lambda each: _function(walk, each)))


def _function(walk: Walk, node: Function) -> None:
    out, arguments = walk.out, node.args
    out.append(f"({node.__class__.__name__} {getattr(node, 'name', '')}")
    decorators = getattr(node, "decorator_list", [])
    walk.members(decorators)
    walk.members(arguments.defaults)
    walk.members(arguments.kw_defaults)
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    stars = [each for each in (arguments.vararg, arguments.kwarg) if each]
    names = [[each.arg for each in group] for group in (arguments.posonlyargs, arguments.args, arguments.kwonlyargs)]
    out.append(f" {'/'.join(map(','.join, names))}")
    out.append(f" *{arguments.vararg.arg if arguments.vararg else ''}")
    out.append(f" **{arguments.kwarg.arg if arguments.kwarg else ''}")
    hinted = [(each.arg, each.annotation) for each in [*every, *stars] if each.annotation]
    if getattr(node, "returns", None):
        hinted.append(("->", node.returns))  # type: ignore[union-attr,arg-type]  # a lambda has none
    if hinted:
        forms = [(name, *walk.hint(annotation)) for name, annotation in hinted]
        text, used = (
            " ".join(f"{name}:{form}" for name, form, _ in forms),
            [chain for *_, found in forms for chain in found],
        )
        walk.events.append(("hint", Hint(tuple(map(_reader, decorators)), digest(text), tuple(dict.fromkeys(used)))))
    around = walk.enter(Scope("function", node, (each.arg for each in [*every, *stars])))
    walk.scope.bound += [each.name for each in getattr(node, "type_params", ())]
    walk.functions.append(node)
    if isinstance(node, ast.Lambda):
        walk.write(node.body)
    else:
        walk.members(node.body)
    walk.functions.pop()
    walk.leave(around)
    out.append(")")


def _class(walk: Walk, node: ast.ClassDef) -> None:
    walk.bind(node.name)
    walk.pieces.append(walk.piece(node, "class", lambda each: _class_body(walk, each)))


def _class_body(walk: Walk, node: ast.ClassDef) -> None:
    walk.out.append(f"(ClassDef {node.name}")
    walk.members(node.decorator_list)
    walk.members(node.bases)
    walk.members(node.keywords)
    metaclass, bases = walk.metaclass, {chain[-1] for base in node.bases if (chain := chain_of(base))}
    walk.metaclass = bool(bases & {"type", "ABCMeta", "EnumMeta", "EnumType"})
    around = walk.enter(Scope("class", node))
    walk.members(node.body)
    hints = walk.scope.hints
    walk.leave(around)
    walk.metaclass = metaclass
    walk.out.append(")")
    if hints:
        made = [keyword.value for keyword in node.keywords if keyword.arg in (None, "metaclass")]
        readers = tuple(map(_reader, [*node.decorator_list, *node.bases, *made]))
        used = dict.fromkeys(chain for _, chains in hints for chain in chains)
        walk.events.append(("hint", Hint(readers, digest(" ".join(text for text, _ in hints)), tuple(used))))


def _reader(node: ast.AST) -> Chain:
    """Return the name of what a decorator, base or metaclass expression takes its behaviour from."""
    while isinstance(node, ast.Call | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    return chain_of(node) or _UNKNOWN


def _annotated(walk: Walk, node: ast.AnnAssign) -> None:
    if walk.scope.kind == "class" and isinstance(node.target, ast.Name):
        text, names = walk.hint(node.annotation)
        walk.scope.hints.append((f"{node.target.id}:{text}", names))
    if node.value is None:
        if isinstance(node.target, ast.Name) and walk.scope.kind != "module":
            walk.bind(node.target.id)
        return
    walk.out.append("(Assign targets=[")
    walk.write(node.target)
    walk.out.append("] value=")
    walk.write(node.value)
    walk.out.append(")")


def _augmented(walk: Walk, node: ast.AugAssign) -> None:
    if isinstance(node.target, ast.Name):
        walk.load((node.target.id,), node.lineno)
    walk.fields(node)


def _walrus(walk: Walk, node: ast.NamedExpr) -> None:
    walk.out.append(f"(NamedExpr {node.target.id}")
    walk.write(node.value)
    walk.out.append(")")
    inner, walk.scope = walk.scope, _around_comprehensions(walk.scope)
    walk.bind(node.target.id)
    walk.scope = inner


def _around_comprehensions(scope: Scope) -> Scope:
    while scope.kind == "comprehension" and scope.around is not None:
        scope = scope.around
    return scope


def _comprehension(walk: Walk, node: Any) -> None:  # Any: one of four types
    first, *others = node.generators
    walk.out.append(f"({node.__class__.__name__} in=")
    walk.write(first.iter)  # evaluated outside
    around = walk.enter(Scope("comprehension"))
    walk.out.append(f" for{first.is_async}=")
    walk.write(first.target)
    walk.members(first.ifs)
    walk.members(others)
    walk.members([getattr(node, name) for name in ("elt", "key", "value") if getattr(node, name, None) is not None])
    walk.leave(around)
    walk.out.append(")")


def _import(walk: Walk, node: ast.Import | ast.ImportFrom) -> None:
    """Note what is imported; the statement is no part of the form, so that a first-party module may move."""
    for each in imports_of(node):
        walk.events.append(("import", (each.name, each.head)))
        if walk.scope.kind != "module":
            walk.scope.imports.setdefault(each.name, []).append(each.head)


def _global(walk: Walk, node: ast.Global) -> None:
    walk.scope.globals.update(node.names)
    walk.fields(node)


def _nonlocal(walk: Walk, node: ast.Nonlocal) -> None:
    walk.scope.nonlocals.update(node.names)
    walk.fields(node)


def _naming(walk: Walk, node: Any) -> None:  # Any: an except clause or a pattern that may bind a name
    name = getattr(node, "name", None) or getattr(node, "rest", None)
    if name:
        walk.bind(name)
    walk.fields(node)


def _joined(walk: Walk, node: ast.JoinedStr) -> None:
    """Write an f-string; versions cut its text into different parts, empty ones among them."""
    text = ""
    walk.out.append("(JoinedStr")
    for part in node.values:
        if isinstance(part, ast.Constant):
            text += str(part.value)
            continue
        if text:
            walk.out.append(constant(text))
        text = ""
        walk.write(part)
    walk.out.append(f"{constant(text) if text else ''})")


def _formatted(walk: Walk, node: ast.FormattedValue) -> None:
    walk.out.append(f"(FormattedValue {node.conversion}")
    walk.write(node.value)
    if node.format_spec is not None and getattr(node.format_spec, "values", None):
        walk.write(node.format_spec)
    walk.out.append(")")


def _constant(walk: Walk, node: ast.Constant) -> None:
    walk.out.append(constant(node.value))


_SPECIAL: Final[dict[type, Callable[[Walk, Any], None]]] = {
    ast.Name: _name,
    ast.Attribute: _attribute,
    ast.Subscript: _subscript,
    ast.Call: _call,
    ast.Constant: _constant,
    ast.FunctionDef: _definition,
    ast.AsyncFunctionDef: _definition,
    ast.Lambda: _lambda,
    ast.ClassDef: _class,
    ast.AnnAssign: _annotated,
    ast.AugAssign: _augmented,
    ast.NamedExpr: _walrus,
    **dict.fromkeys((ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp), _comprehension),
    ast.Import: _import,
    ast.ImportFrom: _import,
    ast.Global: _global,
    ast.Nonlocal: _nonlocal,
    **dict.fromkeys((ast.ExceptHandler, ast.MatchAs, ast.MatchStar, ast.MatchMapping), _naming),
    ast.JoinedStr: _joined,
    ast.FormattedValue: _formatted,
}
