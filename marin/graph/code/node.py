"""Nodes: definitions that a closure reaches, each described once and shared by all closures.

A node says what its definition says itself and refers to others by their places in `edges`, so that it means the same
from wherever it is reached. A node knows whether the names and values that it was described from still mean the same.
"""

import functools
import hashlib
import marshal
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FunctionType, MethodType, ModuleType
from typing import Protocol, TypeAlias

from marin.base.canonical import NOT_HANDLED, NotHandled, encode
from marin.base.errors import CanonicalError
from marin.base.json import Json, dumps
from marin.graph.code.loaded import Globals, Place
from marin.graph.code.meaning import ABSENT, Meaning
from marin.graph.code.piece import Hint, digest

CODE = (FunctionType, type, ModuleType, functools.partial, MethodType)
Key: TypeAlias = tuple[object, ...]
_KEPT_BYTES = 1024
_WITHOUT_REFERENCES = 2
"""The version of marshal in which equal values give equal bytes, whoever else holds them."""


@dataclass(eq=False)
class Node:
    """One definition. `own` and what follows is there once it is described."""

    key: Key
    shown: str
    describe: "Callable[[Node], Description]"
    kept: object
    """What `key` names by its id: while the node lives, nothing else may get that id."""
    own: str = ""
    edges: "list[Node]" = field(default_factory=list)
    found: "Description | None" = None
    checked: int = 0
    """The latest rest (see `Rest`) in which the description was seen to hold."""

    def settle(self, rest: int) -> bool:
        """Describe the node unless its description holds; return whether it was described anew."""
        if self.checked == rest and rest:
            return False
        if self.found is not None and self.found.holds():
            self.checked = rest
            return False
        found = self.describe(self)
        self.found, self.edges, self.checked = found, found.edges, rest
        self.own = digest(dumps(found.says))
        return True


@dataclass(eq=False)
class Description:
    """What a definition says, and what that was read from."""

    says: list[Json] = field(default_factory=list)
    edges: list[Node] = field(default_factory=list)
    guarded: list[tuple[str, Node]] = field(default_factory=list)
    """Class attributes by name: they count unless the closure changes them."""
    members: "list[tuple[frozenset[int], Node]]" = field(default_factory=list)
    """What other modules put in, such as into a registry, and those modules by id: it counts for a closure whose
    modules import them. Another process may not have loaded the others, and need not."""
    home: Globals | None = None
    """The module that it belongs to."""
    holds_code: bool = False
    """Whether it is a value that holds functions or classes: it counts where its name is mentioned."""
    places: list[tuple[Globals, Place]] = field(default_factory=list)
    untracked: list[str] = field(default_factory=list)
    opaque: list[str] = field(default_factory=list)
    """Values made at run time, which the statement that binds the definition explains where it is known."""
    explains: bool = False
    """Whether it is such a statement."""
    changes: list[Key] = field(default_factory=list)
    """Nodes of the values that it changes in place when it runs."""
    attributes: set[str] = field(default_factory=set)
    reads: set[str] = field(default_factory=set)
    docs: list[str] = field(default_factory=list)
    hints: list[tuple[Globals, Hint]] = field(default_factory=list)
    """Type hints that count where something in the closure reads hints."""
    names: list[tuple[Globals, str, object]] = field(default_factory=list)
    values: list[tuple[object, bytes | Json]] = field(default_factory=list)
    """Values that can change in place, and their shapes."""
    held: list[tuple[Callable[[], object], object]] = field(default_factory=list)
    """What is looked up elsewhere than in a module, such as a closure's cell, and what was found."""

    watched: list[tuple[Callable[[], list[int]], list[int]]] = field(default_factory=list)
    """What an object holds, by id, such as the functions of a registry."""

    def watch(self, get: Callable[[], list[int]]) -> None:
        """Remember what an object holds now."""
        self.watched.append((get, get()))

    def edge(self, node: Node) -> int:
        """Return the place of `node` among the edges, adding it."""
        for place, known in enumerate(self.edges):
            if known is node:
                return place
        self.edges.append(node)
        return len(self.edges) - 1

    def look(self, space: Globals, name: str) -> object:
        """Return what a name means now, ABSENT if nothing, and remember it."""
        value = space.get(name, ABSENT)
        self.names.append((space, name, value))
        return value

    def holds(self) -> bool:
        """Whether all that was read still is what it was."""
        for space, name, value in self.names:
            if space.get(name, ABSENT) is not value:
                return False
        return (
            all(get() is value for get, value in self.held)
            and all(get() == known for get, known in self.watched)
            and all(_still(value, known) for value, known in self.values)
        )


def _still(value: object, known: bytes | Json) -> bool:
    try:
        return shape(value) == known
    except CanonicalError:  # it holds something else now
        return False


def shape(value: object) -> bytes | Json:
    """Return a form by which a change in place is seen; code in it counts by identity."""
    try:  # takes a tenth of the time; it raises ValueError for anything but plain values
        plain = marshal.dumps(value, _WITHOUT_REFERENCES)  # type: ignore[arg-type]
    except (ValueError, BufferError):
        return encode(value, path="", special=_by_identity)
    return plain if len(plain) < _KEPT_BYTES else hashlib.sha256(plain).digest()


def _by_identity(member: object, _: str) -> Json | NotHandled:
    return {"$id": id(member)} if isinstance(member, (*CODE, re.Pattern)) else NOT_HANDLED


class Reach(Protocol):
    """How a description refers to other definitions."""

    def code(self, value: object) -> list[Node]:
        """Return the nodes of a function, class, what wraps one, or a module; none for a library's."""

    def reference(self, found: Meaning) -> list[Node]:
        """Return the nodes that a name stands for: the value itself, and the statements that made it."""

    def constant(self, value: object, space: Globals, name: str) -> Node:
        """Return the node of a value that statements of a module bind to a name."""

    def item(self, key: object, value: object, shown: str) -> Node:
        """Return the node of what another module put into a value."""

    def importable(self, space: Globals) -> frozenset[int]:
        """Return the modules that importing one imports, itself included, by id."""

    def attribute(self, kind: type, name: str, value: object) -> Node:
        """Return the node of a class attribute that is a plain value."""
