"""Reach: the graph of all definitions that were met in this process, each once.

Whose code a value is decides how it is followed: what the user edits is described, a library's is named by its import,
and marin itself declares versions.
"""

import functools
import inspect
from collections.abc import Callable, Iterator
from types import FunctionType, MethodType, ModuleType

from marin.base.json import Json
from marin.graph.code.classes import describe_attribute, describe_class, places_of_class, subclasses
from marin.graph.code.constants import defines, describe_constant, describe_written
from marin.graph.code.functions import describe_function, places_of_function
from marin.graph.code.held import held, split
from marin.graph.code.loaded import (
    Globals,
    Home,
    home_of,
    is_first_party,
    libraries,
    modules_above,
    space_named,
    space_of,
)
from marin.graph.code.meaning import ABSENT, Meaning, binding, meaning_of
from marin.graph.code.node import Description, Key, Node
from marin.graph.code.piece import import_of
from marin.graph.code.said import key_of_attribute, key_of_constant, say

_HARMLESS = {
    *("logging", "warnings", "atexit", "signal", "sys", "gc", "faulthandler", "tracemalloc", "argparse", "unittest"),
    *("marin", "ray", "click", "typer", "rich", "tqdm", "dotenv", "matplotlib", "seaborn", "IPython", "pytest"),
}
"""Libraries that no result depends on: calling them when a module is imported does not count."""


class Graph:
    """Nodes by what they stand for."""

    def __init__(self) -> None:
        self.nodes: dict[Key, Node] = {}
        self._importable: dict[int, tuple[Home, frozenset[int]]] = {}
        self._effects: dict[int, tuple[Home, list[Node]]] = {}
        self._above: dict[int, tuple[Home, list[str]]] = {}
        self._told: dict[tuple[int, int, str], tuple[object, Home, bool]] = {}

    def code(self, value: object) -> list[Node]:
        """Return the nodes of a function, class, what wraps one, or a module; none for a library's."""
        if isinstance(value, ModuleType):
            return self._module(value) if is_first_party(vars(value)) else []
        if isinstance(value, classmethod | staticmethod):
            value = value.__func__
        if isinstance(value, type):
            return self._class(value)
        if not isinstance(value, FunctionType):
            wrapped = inspect.getattr_static(value, "__wrapped__", None)  # an object of functools.cache
            return self.code(wrapped) if isinstance(wrapped, FunctionType) else []
        # Globals tell whose a function is: functools.wraps gives a wrapper the `__module__` of what it wraps.
        if is_first_party(value.__globals__):
            shown = f"{value.__globals__.get('__name__')}.{value.__code__.co_qualname}"
            return [self._node(("function", id(value)), shown, value, lambda _: describe_function(value, self))]
        wrapped = getattr(value, "__wrapped__", None)
        return self.code(wrapped) if isinstance(wrapped, FunctionType) else []

    def root(self, value: object) -> list[Node]:
        """Return the nodes of what a digest is asked for; a partial or a bound method counts with what it holds."""
        if isinstance(value, functools.partial | MethodType):
            shown = "partial" if isinstance(value, functools.partial) else f"method {value.__name__}"

            def describe(_: Node) -> Description:
                description = Description()
                description.says = [held(value, description, self, shown)]
                return description

            return [self._node(("object", id(value)), shown, value, describe)]
        return self.code(value)

    def reference(self, found: Meaning) -> list[Node]:
        """Return the nodes that a name stands for: the value itself, and the statements that made it."""
        value = found.value
        if value is ABSENT:
            return []
        nodes = self.code(value)
        if isinstance(value, ModuleType):
            return nodes
        bound = binding(found.space, found.name)
        if bound is not None and self._is_told_by_statements(value, *bound):
            nodes = [*nodes, self.constant(value, *bound)]
        if found.rest[:1] == ("__subclasses__",) and isinstance(value, type):
            nodes = [*nodes, self._subclasses(value)]
        return nodes

    def _subclasses(self, kind: type) -> Node:
        def describe(_: Node) -> Description:
            description = Description(home=space_of(kind))
            description.watch(lambda: [id(each) for each in subclasses(kind)])
            description.says = [split(subclasses(kind), description, self)]
            return description

        return self._node(
            ("subclasses", id(kind)), f"{kind.__module__}.{kind.__qualname__} (subclasses)", kind, describe
        )

    def hinted(self, description: Description) -> list[Node]:
        """Return the nodes that the type hints of a description name, for code that reads hints."""
        found = [
            meaning_of(chain, space, description.look)
            for space, hint in description.hints
            for chain in hint.names
            if import_of(chain[0]) is None
        ]
        return [node for each in found for node in self.reference(each)]

    def constant(self, value: object, space: Globals, name: str) -> Node:
        """Return the node of a value that statements of a module bind to a name."""
        shown = f"{space.get('__name__')}.{name}"

        def describe(_: Node) -> Description:
            return describe_constant(space.get(name), space, name, shown, self)

        return self._node(key_of_constant(space, name), shown, space, describe)

    def written(self, node: Node) -> Node:
        """Return the node that stands for a constant which the closure itself changes."""
        _, _, name = node.key
        space = node.kept
        assert isinstance(space, dict)
        assert isinstance(name, str)

        def describe(_: Node) -> Description:
            return describe_written(space.get(name), space, name, node.shown, self)

        return self._node(("written", *node.key), node.shown, space, describe)

    def effects(self, space: Globals) -> list[Node]:
        """Return the node of what a module does elsewhere when it is imported, such as `random.seed(1)`."""
        home = home_of(space)
        known = self._effects.get(id(space))
        if known is None or known[0] is not home:
            known = self._effects[id(space)] = home, self._find_effects(space, home)
        return known[1]

    def _find_effects(self, space: Globals, home: Home) -> list[Node]:
        def describe(_: Node) -> Description:
            description = Description()
            description.held.append((lambda: home_of(space), home))
            description.says = [say(places, space, str(space.get("__name__")), description, self)]
            return description

        places = list(dict.fromkeys(place for name, place in home.effects if self._has_effect(space, name)))
        shown = f"{space.get('__name__')} (on import)"
        return [self._node(("effects", id(space), id(home)), shown, space, describe)] if places else []

    def modules_above(self, space: Globals) -> Iterator[Globals]:
        """Yield the packages of a module and what it imports, as far as they are loaded."""
        home = home_of(space)
        known = self._above.get(id(space))
        if known is None or known[0] is not home:
            known = self._above[id(space)] = home, modules_above(space)
        return map(space_named, known[1])

    def importable(self, space: Globals) -> frozenset[int]:
        """Return the modules that importing one imports, itself included, by id."""
        home = home_of(space)
        known = self._importable.get(id(space))
        if known is None or known[0] is not home:
            met, waiting = {id(space)}, [space]
            while waiting:
                found = [
                    each for each in self.modules_above(waiting.pop()) if id(each) not in met and is_first_party(each)
                ]
                met.update(map(id, found))
                waiting += found
            known = self._importable[id(space)] = home, frozenset(met)
        return known[1]

    def item(self, key: object, value: object, shown: str) -> Node:
        """Return the node of what another module put into a value."""

        def describe(_: Node) -> Description:
            description = Description()
            description.says = [held(key, description, self, shown), held(value, description, self, shown)]
            return description

        return self._node(("item", shown, id(key), id(value)), shown, (key, value), describe)

    def _has_effect(self, space: Globals, name: str) -> bool:
        """Whether calling a name, or changing what it stands for, can matter to others than the name's owner."""
        imports = libraries(space, name)
        if imports:
            return not all(each.partition(":")[0].partition(".")[0] in _HARMLESS for each in imports)
        value = space.get(name)
        if not isinstance(value, FunctionType) or not is_first_party(value.__globals__):
            return False
        # It does if it calls libraries, as `def seed(n): random.seed(n)`; what it does to names of ours is seen there.
        heads = [chain[0] for place in places_of_function(value) for chain in place.piece.names]
        used = [
            each.partition(":")[0].partition(".")[0] for head in heads for each in libraries(value.__globals__, head)
        ]
        return "marin" not in used and not _HARMLESS.issuperset(used)

    def attribute(self, kind: type, name: str, value: object) -> Node:
        """Return the node of a class attribute that is a plain value."""
        shown = f"{kind.__module__}.{kind.__qualname__}.{name}"

        def describe(_: Node) -> Description:
            return describe_attribute(kind, name, vars(kind).get(name), self)

        return self._node(key_of_attribute(kind, name), shown, kind, describe)

    def _node(self, key: Key, shown: str, kept: object, describe: Callable[[Node], Description]) -> Node:
        node = self.nodes.get(key)
        if node is None:
            node = self.nodes[key] = Node(key, shown, describe, kept)
        return node

    def _class(self, kind: type) -> list[Node]:
        space = space_of(kind)
        if not is_first_party(space):
            return []
        node = self.nodes.get(("class", id(kind)))
        if node is not None:
            return [node]
        if not places_of_class(kind):
            return self._made_class(kind, space)
        shown = f"{space['__name__']}.{kind.__qualname__}"
        return [
            self._node(("class", id(kind)), shown, kind, lambda _: describe_class(kind, places_of_class(kind), self))
        ]

    def _made_class(self, kind: type, space: Globals) -> list[Node]:
        """Return the node of a class that a call made, such as `namedtuple("N", ...)`, by its own name."""
        name = kind.__qualname__
        if name in home_of(space).definitions and space.get(name) is kind:
            return [self.constant(kind, space, name)]
        return []

    def _module(self, module: ModuleType) -> list[Node]:
        """Return the node of a module that is handed around as a value: all of it counts."""
        space = vars(module)

        def describe(_: Node) -> Description:
            description = Description()
            home = home_of(space)
            description.held.append((lambda: home_of(space), home))
            for name in sorted({*home.definitions, *home.imports}):
                found = meaning_of((name,), space, description.look)
                if not isinstance(found.value, ModuleType):
                    said: list[Json] = [description.edge(node) for node in self.reference(found)]
                    description.says.append([name, said, list(found.libraries)])
            return description

        return [self._node(("module", id(space)), module.__name__, module, describe)]

    def _is_told_by_statements(self, value: object, space: Globals, name: str) -> bool:
        """Whether the statements that bind a name say more than the value's own definition."""
        key, home = (id(value), id(space), name), home_of(space)
        known = self._told.get(key)
        if known is None or known[0] is not value or known[1] is not home:
            known = self._told[key] = value, home, self._tell(value, space, name)
        return known[2]

    def _tell(self, value: object, space: Globals, name: str) -> bool:
        places = list(home_of(space).definitions.get(name, ()))
        if isinstance(value, FunctionType) and value.__globals__ is space and defines(value, places):
            return any(place.piece.kind == "statement" for place in places)
        if isinstance(value, type) and space_of(value) is space and value.__qualname__ == name:
            return not self._class(value)
        return True
