"""Pieces: what counts of a definition or a statement, as plain data that any process can keep.

A piece names what it mentions and never resolves it: what the names mean is known only where the code is loaded. It
imports the standard library alone.
"""

import ast
import hashlib
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

Chain: TypeAlias = tuple[str, ...]
"""A dotted name: `a.b.c` is ("a", "b", "c"). An import inside a definition is a head of its own: see `Import.head`."""


class Import(NamedTuple):
    """`name` stands for `attribute` of `module`, or for the module itself when `attribute` is None."""

    name: str
    module: str
    """With its leading dots."""
    attribute: str | None
    top: bool = False
    """`import a.b` binds `a`: the name is the package's."""

    @property
    def head(self) -> str:
        """The import as the first part of a chain, which no identifier can be taken for."""
        return f"{self.module}!" if self.top else f"{self.module}:{self.attribute or ''}"


def import_of(head: str) -> Import | None:
    """Return the import that the first part of a chain stands for; None for a plain name."""
    if head.endswith("!"):
        return Import(head[:-1].split(".", 1)[0], head[:-1], None, True)
    module, colon, attribute = head.partition(":")
    return Import(attribute or module, module, attribute or None) if colon else None


def imports_of(node: ast.AST) -> list[Import]:
    """Return what an import statement binds; nothing for another node."""
    if isinstance(node, ast.Import):
        return [
            Import(alias.asname or alias.name.split(".")[0], alias.name, None, alias.asname is None)
            for alias in node.names
        ]
    if isinstance(node, ast.ImportFrom):
        module = "." * node.level + (node.module or "")
        return [Import(alias.asname or alias.name, module, alias.name) for alias in node.names]
    return []


class Hint(NamedTuple):
    """Type hints of one signature or one class body."""

    readers: tuple[Chain, ...]
    """Decorators, bases and metaclass, which may read the hints."""
    form: str
    names: tuple[Chain, ...]


class Piece(NamedTuple):
    """What counts of one definition, lambda, or statement of a module."""

    kind: str
    """`function`, `class`, `lambda`, `statement` or `condition`."""
    name: str
    first: int
    last: int
    form: str
    """The digest of its normal form."""
    docs: str
    """The digest of its docstrings; empty when there are none."""
    hints: tuple[Hint, ...]
    names: tuple[Chain, ...]
    """What it mentions of the world outside itself, each once, in the order of first mention."""
    imports: tuple[tuple[str, str], ...]
    """Imports of its own: the name bound, and the head."""
    changes: tuple[Chain, ...]
    """What it assigns or changes in place when it runs."""
    own: tuple[str, ...]
    """Its parameters that it changes in place."""
    attributes: tuple[str, ...]
    """All attributes that it mentions, whosever they are."""
    stored: tuple[str, ...]
    """Attributes that functions inside assign or change in place, save by code that runs when a class is made."""
    reads: tuple[str, ...]
    """`hints`, `docs`: what it reads of other definitions."""
    untracked: tuple[str, ...]
    """Dynamic references such as `getattr in line 3`, whose target no reader can know."""
    binds: tuple[str, ...]
    """What the body of a class binds."""
    handed: bool
    """Whether a decorator or base sees it when it is made."""


def piece_from(data: Sequence[Any]) -> Piece:  # Any: JSON
    """Return the piece that was written as JSON; raises TypeError or ValueError when it is none."""
    piece = Piece(*data)
    return piece._replace(
        hints=tuple(Hint(_chains(readers), form, _chains(names)) for readers, form, names in piece.hints),
        names=_chains(piece.names),
        imports=tuple((name, head) for name, head in piece.imports),
        changes=_chains(piece.changes),
    )


def _chains(chains: Iterable[Iterable[str]]) -> tuple[Chain, ...]:
    return tuple(map(tuple, chains))


def chain_of(node: ast.AST) -> Chain | None:
    """Return the dotted name that an expression is; None for any other expression."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    head = node.id if isinstance(node, ast.Name) else imported_by_call(node)
    return None if head is None else (head, *reversed(parts))


def imported_by_call(node: ast.AST) -> str | None:
    """Return the head that `import_module("a.b")` is; None for any other expression."""
    if not isinstance(node, ast.Call) or len(node.args) != 1 or node.keywords:
        return None
    function, argument = node.func, node.args[0]
    called = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    if called not in {"import_module", "__import__"} or not isinstance(argument, ast.Constant):
        return None
    name = argument.value
    if not isinstance(name, str) or not all(part.isidentifier() for part in name.split(".")):
        return None
    return f"{name}:"


def constant(value: object) -> str:
    """Return a constant as text that names its type; texts are preceded by their length."""
    if isinstance(value, str):
        return f"(s{len(value)} {value})"
    if isinstance(value, bool) or value is None or value is ...:
        return f"({value})"
    if isinstance(value, int):
        return f"(i{value:x})"
    if isinstance(value, float):
        return f"(f{value.hex()})"
    if isinstance(value, complex):
        return f"(c{value.real.hex()} {value.imag.hex()})"
    assert isinstance(value, bytes), "Python's syntax has no other constants"
    return "(b" + value.hex() + ")"


def digest(text: str) -> str:
    """Return the sha256 of a text, in hex."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
