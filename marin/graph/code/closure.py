"""Code digests: the closure of first-party definitions that a step or function reaches.

A definition counts by its normal form (`marin.graph.code.walk`) and by what its names mean: functions, classes with
their bases, constants, closures, defaults, `module.attr`, imports inside functions. Module names do not count, so a
moved file keeps its results. First-party is what the user edits: not the standard library, not installed packages, and
not marin itself, whose version is recorded. What cannot be followed is listed, never guessed.
"""

import functools
import hashlib
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from marin.base.json import dumps
from marin.graph.code.loaded import Globals, Place, is_first_party, keep_parsed
from marin.graph.code.node import Description, Key, Node
from marin.graph.code.passages import modules, texts
from marin.graph.code.piece import digest
from marin.graph.code.reach import Graph

_MOST_NODES = 65_536
_MOST_ROOTS = 4096


@dataclass(frozen=True)
class CodeDigest:
    """What code is: one digest over all that is reached, and each definition's own for explanations."""

    digest: str
    definitions: dict[str, str]
    """Qualified name to the digest of what it says itself."""
    untracked: tuple[str, ...]
    """Dynamic references that could not be followed, such as `count: getattr in line 3`."""
    places: Sequence[tuple[str, Sequence[tuple[Globals, Place]]]] = field(default=(), repr=False, compare=False)
    """Where each stands, for `texts` and `modules`."""

    @functools.cached_property
    def texts(self) -> dict[str, str]:
        """The source text of each of `definitions`, as it was loaded; what has none is left out."""
        return texts(self.places)

    @functools.cached_property
    def modules(self) -> dict[str, str]:
        """The whole text, as it was loaded, of each first-party module that is reached or that those need.

        Needed are their packages and what they import: written to files, these texts can be imported again.
        """
        return modules(self.places)


@dataclass(frozen=True)
class _Known:
    found: CodeDigest
    nodes: list[Node]
    rest: int


class _Process:
    """What this process knows of code."""

    def __init__(self) -> None:
        self.graph = Graph()
        self.known: dict[tuple[int, ...], tuple[tuple[object, ...], _Known]] = {}
        self.lock = threading.RLock()
        self.rests = 0
        self.rest = 0
        """The number of the rest that holds now; 0 while code may change at any time."""


_process = _Process()


def digest_of(*roots: object) -> CodeDigest:
    """Return the code digest of functions and classes together with all first-party code they reach.

    Remembered for as long as every name that was met still means the same. Raises CanonicalError when the source of
    one cannot be read, or is not what was loaded.
    """
    with _process.lock:
        key = tuple(map(id, roots))
        _, known = _process.known.get(key, (None, None))
        if known is not None and ((_process.rest and known.rest == _process.rest) or _holds(known.nodes)):
            _process.known[key] = roots, _Known(known.found, known.nodes, _process.rest)
            return known.found
        if len(_process.graph.nodes) > _MOST_NODES or len(_process.known) > _MOST_ROOTS:
            _process.graph, _process.known = Graph(), {}
        closure = _Closure(_process.graph, _process.rest)
        found = closure.read([node for root in roots for node in _process.graph.root(root)])
        _process.known[key] = roots, _Known(found, closure.order, _process.rest)
        if not _process.rest:
            keep_parsed()
        return found


@contextmanager
def code_at_rest() -> Iterator[None]:
    """Take it that no code changes in this process meanwhile, so that each definition is looked at once.

    For a plan, which asks for the digests of thousands of steps that share their code.
    """
    before = _process.rest
    if not before:
        _process.rests += 1
        _process.rest = _process.rests
    try:
        yield
    finally:
        _process.rest = before
        if not before:
            keep_parsed()


def _holds(nodes: list[Node]) -> bool:
    return not any([node.settle(_process.rest) for node in nodes])


class _Closure:
    """Breadth-first: each definition gets a number when it is first met, and refers to others by number."""

    def __init__(self, graph: Graph, rest: int) -> None:
        self.graph = graph
        self.rest = rest
        self.order: list[Node] = []
        self.numbers: dict[int, int] = {}
        self.changed: set[Key] = set()
        """Constants and class attributes that the closure itself changes."""
        self.reads: set[str] = set()
        """`hints`, `docs`: what something in the closure reads of definitions."""
        self.guarded: list[tuple[int, Node]] = []
        """Class attributes that were met and wait for a mention."""
        self.joined: list[list[int]] = []
        """Numbers of nodes, and of what they reach beyond their edges: class attributes, type hints that are read; what
        a module does when it is imported belongs to none (-1)."""
        self.modules: set[int] = set()
        """The modules that are reached and all that they import, by id."""
        self.homes: set[int] = set()
        self.waiting: list[Globals] = []
        """Modules that were reached, by id, and those of them whose imports are to be looked at."""
        self.holders: list[int] = []
        self.taken: set[tuple[int, int]] = set()
        """Numbers of nodes with members, and the members of theirs that count, by id."""
        self.roots: set[int] = set()
        """Functions that were asked for: what binds them counts, whoever imports it."""

    def read(self, roots: list[Node]) -> CodeDigest:
        while True:
            self._walk(roots)
            changed = self.changed | {key for node in self.order for key in _found(node).changes}
            reads = self.reads | {word for node in self.order for word in _found(node).reads}
            if (changed, reads) == (self.changed, self.reads):
                return self._finish(roots)
            self.changed, self.reads = changed, reads

    def _walk(self, roots: list[Node]) -> None:
        self.order, self.numbers, self.guarded, self.joined, self.modules = [], {}, [], [], set()
        self.waiting, self.homes, self.holders, self.taken = [], set(), [], set()
        numbers = [self._number(root) for root in roots]
        self.roots = {number for number in numbers if self.order[number].key[0] == "function"}
        done = 0
        while done < len(self.order) or self._add_mentioned() or self._add_effects() or self._add_members():
            while done < len(self.order):
                self._visit(done)
                done += 1

    def _visit(self, number: int) -> None:
        node, numbers = self.order[number], self.numbers
        node.settle(self.rest)
        for edge in node.edges:
            if id(edge) not in numbers:
                self._number(edge)
        found = _found(node)
        if found.home is not None and id(found.home) not in self.homes:
            self.homes.add(id(found.home))
            self.waiting.append(found.home)
        if found.members:
            self.holders.append(number)
        if found.hints and "hints" in self.reads:
            self.joined += [[number, self._number(each)] for each in self.graph.hinted(found)]
        for _, attribute in found.guarded:
            if attribute.key not in self.changed:
                attribute.settle(self.rest)
                self.guarded.append((number, attribute))

    def _number(self, node: Node) -> int:
        known = self.numbers.get(id(node))
        if known is not None:
            return known
        self.numbers[id(node)] = len(self.order)
        self.order.append(self.graph.written(node) if node.key in self.changed else node)
        return len(self.order) - 1

    def _add_mentioned(self) -> bool:
        """Number the class attributes that count; one that holds code does where its name is mentioned."""
        if not self.guarded:
            return False
        waiting, self.guarded = self.guarded, []
        mentioned: set[str] = set()
        if any(_found(attribute).holds_code for _, attribute in waiting):
            mentioned = {name for node in self.order for name in _found(node).attributes}
        grown = False
        for number, attribute in waiting:
            if _found(attribute).holds_code and attribute.key[2] not in mentioned:
                self.guarded.append((number, attribute))
            else:
                self.joined.append([number, self._number(attribute)])
                grown = True
        return grown

    def _add_effects(self) -> bool:
        """Number what the modules that are reached, and all that they import, do when they are imported."""
        before = len(self.order)
        while self.waiting:
            space = self.waiting.pop()
            if id(space) not in self.modules and is_first_party(space):
                self.modules.add(id(space))
                self.joined += [[-1, self._number(node)] for node in self.graph.effects(space)]
                self.waiting += self.graph.modules_above(space)
        return len(self.order) > before

    def _add_members(self) -> bool:
        """Number what other modules put into values, such as registries, if the modules of the closure import them."""
        before = len(self.taken)
        for number in self.holders:
            for spaces, member in _found(self.order[number]).members:
                if (number, id(member)) not in self.taken and (number in self.roots or spaces <= self.modules):
                    self.taken.add((number, id(member)))
                    self.joined.append([number, self._number(member)])
        return len(self.taken) > before

    def _finish(self, roots: list[Node]) -> CodeDigest:
        own = [self._own(node) for node in self.order]
        numbers = self.numbers
        lines = [
            f"{said} {[numbers[id(edge)] for edge in node.edges]}" for said, node in zip(own, self.order, strict=True)
        ]
        lines.append(dumps([[numbers[id(root)] for root in roots], self.joined]))
        whole = hashlib.sha256("\n".join(lines).encode()).hexdigest()
        for number, other in self.joined:
            if self.order[other].key[0] == "attribute":
                own[number] = digest(own[number] + own[other])
        named = [(node, said) for node, said in zip(self.order, own, strict=True) if node.key[0] != "attribute"]
        names = _distinct([node.shown for node, _ in named])
        definitions = {name: said for name, (_, said) in zip(names, named, strict=True)}
        places = [(name, _found(node).places) for name, (node, _) in zip(names, named, strict=True)]
        return CodeDigest(whole, definitions, self._untracked(), places)

    def _own(self, node: Node) -> str:
        """Return what a node says itself, with what only counts where the closure reads it."""
        found, own = _found(node), node.own
        if "docs" in self.reads and found.docs:
            own = digest(dumps([own, "docs", list(found.docs)]))
        if "hints" in self.reads and found.hints:
            own = digest(dumps([own, "hints", [hint.form for _, hint in found.hints]]))
        return own

    def _untracked(self) -> tuple[str, ...]:
        explained = {id(edge) for node in self.order if _found(node).explains for edge in node.edges}
        explained |= {id(self.order[number]) for number, _ in self.taken}
        lines = [line for node in self.order for line in _found(node).untracked]
        lines += [line for node in self.order if id(node) not in explained for line in _found(node).opaque]
        return tuple(dict.fromkeys(lines))


def _found(node: Node) -> Description:
    assert node.found is not None, "a node is described before it is read"
    return node.found


def _distinct(names: list[str]) -> list[str]:
    """Number names that occur several times."""
    met: dict[str, int] = {}
    distinct = []
    for name in names:
        met[name] = met.get(name, 0) + 1
        distinct.append(name if met[name] == 1 else f"{name} ({met[name]})")
    return distinct
