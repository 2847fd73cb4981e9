"""Scopes: what a walk notes of names: read, bound, changed, imported, by Python's own rules of scope.

A name counts for a definition only when nothing inside binds it, so that a local variable is no reference to a global
of its name; what is changed in place is told apart from what is only read. It imports the standard library alone.
"""

import ast
from collections.abc import Callable, Iterable
from typing import Any

from marin.graph.code.piece import Chain, Hint, Piece, chain_of, constant, digest

_DYNAMIC = {"getattr", "eval", "exec", "globals", "locals", "vars", "__import__"}
_DYNAMIC_ENDS = {
    "import_module",
    "entry_points",
    "iter_modules",
    "walk_packages",
    "getsource",
    "run_path",
    "run_module",
    "resolve_name",
    "__dict__",
    "__getattribute__",
    "__globals__",
}
_READS = {
    "hints": {
        "__annotations__",
        "get_type_hints",
        "get_annotations",
        "return_annotation",
        "annotation",
        "signature",
        "getfullargspec",
    },
    "docs": {"__doc__", "getdoc"},
}
_MAKES_CLASSES = {"__init_subclass__", "__set_name__", "__prepare__"}
_MAKES_OBJECTS = {"__init__", "__new__", "__post_init__", "model_post_init", "__setstate__"}


class Scope:
    """Names of one function, lambda, comprehension or class body, or of the module."""

    __slots__ = (
        "around",
        "bound",
        "changes",
        "dynamic",
        "globals",
        "hints",
        "imports",
        "kind",
        "loads",
        "node",
        "nonlocals",
        "params",
    )

    def __init__(self, kind: str, node: ast.AST | None = None, params: Iterable[str] = ()) -> None:
        self.kind = kind
        self.around: Scope | None = None
        self.node = node
        self.params = tuple(params)
        self.bound: list[str] = []
        self.imports: dict[str, list[str]] = {}
        self.globals: set[str] = set()
        self.nonlocals: set[str] = set()
        self.loads: list[Chain] = []
        self.changes: list[Chain] = []
        self.dynamic: list[tuple[str, str]] = []
        """First parts of names whose target no reader can know, and what to say of them."""
        self.hints: list[tuple[str, tuple[Chain, ...]]] = []


class Notes:
    """What one walk has noted; `pieces` are the definitions and lambdas that were met."""

    def __init__(self) -> None:
        self.pieces: list[Piece] = []
        self.out: list[str] = []
        self.executed: list[str] = []
        """First parts of names that are evaluated where they stand, in no function's body."""
        self.filled: list[str] = []
        """First parts of what is changed where it stands."""
        self.scope = Scope("module")
        self.attributes: list[str] = []
        self.events: list[tuple[Any, ...]] = []
        """What pieces hold besides: docs, hint, import, load, change, own, stored, binds."""
        self.functions: list[ast.AST] = []
        """The functions whose bodies are being read, outermost first."""
        self.metaclass = False

    def piece(self, node: Any, kind: str, write: Callable[[Any], None]) -> Piece:  # Any: a node, or a block of them
        """Return what `write(node)` adds, as a piece."""
        scope, out, attributes, events = self.scope, len(self.out), len(self.attributes), len(self.events)
        loads, changes, dynamic = len(scope.loads), len(scope.changes), len(scope.dynamic)
        write(node)
        noted: dict[str, list[Any]] = {}
        for event in self.events[events:]:
            noted.setdefault(event[0], []).append(event[1])
        mentioned = set(self.attributes[attributes:])
        names = dict.fromkeys([*scope.loads[loads:], *noted.get("load", ())])
        read = mentioned | {chain[0] for chain in names}
        name = getattr(node, "name", "")
        return Piece(
            kind,
            name if isinstance(name, str) else "",  # of `type X = ...` it is a node
            first_line(node),
            getattr(node, "end_lineno", None) or first_line(node),
            digest("".join(self.out[out:])),
            digest("".join(map(constant, noted["docs"]))) if "docs" in noted else "",
            _merged(noted.get("hint", ())),
            tuple(names),
            tuple(dict.fromkeys(noted.get("import", ()))),
            tuple(dict.fromkeys([*scope.changes[changes:], *noted.get("change", ())])),
            tuple(dict.fromkeys(name for at, name in noted.get("own", ()) if at is node)),
            tuple(sorted(mentioned)),
            tuple(sorted(set(noted.get("stored", ())))),
            tuple(word for word, words in _READS.items() if words & read),
            tuple(text for _, text in scope.dynamic[dynamic:]),
            tuple(dict.fromkeys(name for at, names in noted.get("binds", ()) if at is node for name in names)),
            any(getattr(node, name, None) for name in ("decorator_list", "bases", "keywords")),
        )

    def load(self, chain: Chain, line: int) -> None:
        """Note a name that is read."""
        self.scope.loads.append(chain)
        if not self.functions:
            self.executed.append(chain[0])
        if chain[-1] in _DYNAMIC_ENDS or (chain[-1] in _DYNAMIC and len(chain) == 1) or chain[:2] == ("sys", "modules"):
            self.scope.dynamic.append((chain[0], f"{'.'.join(chain[-2:])} in line {line}"))

    def bind(self, name: str) -> None:
        """Note a name that is assigned."""
        scope = self.scope
        if name in scope.globals:
            self.events.append(("change", (name,)))
        elif name in scope.nonlocals:
            scope.changes.append((name,))
        else:
            scope.bound.append(name)

    def change(self, target: ast.AST, *, assigned: str = "") -> None:
        """Note what is changed in place: a value, or its attribute `assigned`; not by code that makes a class."""
        if self.makes_class():
            return
        chain = chain_of(target)
        whole = (*chain, assigned) if chain is not None and assigned else chain or _root(target)
        if whole:
            self.scope.changes.append(whole)
            if not self.functions:
                self.filled.append(whole[0])
        attribute = assigned or (target.attr if isinstance(target, ast.Attribute) else "")
        if not attribute or not self.functions:
            return
        makers = [function for function in self.functions if getattr(function, "name", "") in _MAKES_OBJECTS]
        if not assigned or chain not in [_first_parameter(maker) for maker in makers]:  # `self.x = x` makes an object
            self.events.append(("stored", attribute))

    def mention(self, attributes: Iterable[str]) -> None:
        """Note attributes that are mentioned, save by code that runs when a class is made."""
        if not self.makes_class():
            self.attributes += attributes

    def makes_class(self) -> bool:
        """Whether what is being read runs when a class is made, never later."""
        names = {getattr(function, "name", "") for function in self.functions}
        return bool(names & _MAKES_CLASSES or (self.metaclass and names & _MAKES_OBJECTS))

    def enter(self, scope: Scope) -> Scope:
        """Begin a scope; return the one around it."""
        scope.around, self.scope = self.scope, scope
        return scope.around

    def leave(self, around: Scope) -> None:
        """End a scope: what it does not bind itself is read and changed around it."""
        scope, self.scope = self.scope, around
        bound = set() if scope.kind == "class" else {*scope.bound, *scope.params}
        if scope.kind == "class":
            self.events.append(("binds", (scope.node, tuple(scope.bound))))
        for chain in scope.loads:
            if chain[0] in scope.globals:
                self.events.append(("load", chain))
            elif chain[0] in scope.imports:
                around.loads += [(head, *chain[1:]) for head in scope.imports[chain[0]]]
            elif chain[0] not in bound:
                around.loads.append(chain)
        around.dynamic += [(head, text) for head, text in scope.dynamic if head not in bound or head in scope.globals]
        for chain in scope.changes:
            if chain[0] in scope.globals:
                self.events.append(("change", chain))
            elif chain[0] in scope.imports:
                around.changes += [(head, *chain[1:]) for head in scope.imports[chain[0]]]
            elif chain[0] not in bound:
                around.changes.append(chain)
            elif chain[0] in scope.params:
                self.events.append(("own", (scope.node, chain[0])))


def first_line(node: ast.AST) -> int:
    """Return the line where a definition begins, its decorators included, as code objects count."""
    lines: list[int] = [decorator.lineno for decorator in getattr(node, "decorator_list", ())]
    return min([*lines, getattr(node, "lineno", 0)])


def _root(node: ast.AST) -> Chain:
    """Return the dotted name that `name["a"].b["c"]` begins with; empty if there is none."""
    while isinstance(node, ast.Subscript | ast.Attribute):
        node = node.value
        if chain := chain_of(node):
            return chain
    return ()


def _first_parameter(function: Any) -> Chain:  # Any: a function's or a lambda's node
    return tuple([each.arg for each in (*function.args.posonlyargs, *function.args.args)][:1])


def _merged(hints: Iterable[Hint]) -> tuple[Hint, ...]:
    """Join the hints that only code which reads hints could see."""
    unread = [hint for hint in hints if not hint.readers]
    read = [hint for hint in hints if hint.readers]
    if unread:
        names = dict.fromkeys(chain for hint in unread for chain in hint.names)
        read.append(Hint((), digest(" ".join(hint.form for hint in unread)), tuple(names)))
    return tuple(read)
