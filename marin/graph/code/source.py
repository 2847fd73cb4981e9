"""Source text as plain data: what each name of a module stands for, whatever the text looks like.

A file is read once: the pieces of it (`marin.graph.code.piece`) hold all that a code digest needs, so that they can be
kept on disk and no process reads the same text twice. It imports the standard library alone and never executes what it
reads.
"""

import ast
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, overload

from marin.graph.code.piece import Chain, Import, Piece, chain_of, import_of, imports_of, piece_from
from marin.graph.code.walk import Walk

_DEEP = 100_000
"""Frames that a deep expression may take; Python's own frames live on the heap."""
_HINTS = Piece._fields.index("hints")
_OPEN_BLOCKS = (ast.If, ast.Try, ast.TryStar)
"""Blocks whose statements each stand for themselves; a loop or a `with` counts as a whole."""


@dataclass(frozen=True)
class ModuleSource:
    """What one file says. Numbers are places in `pieces`."""

    pieces: Sequence[Piece]
    definitions: Mapping[str, tuple[int, ...]]
    """What binds or fills a name at the top level, in order: functions, classes, assignments, loops, calls of its
    methods, calls of functions that change it, and the conditions that these stand under."""
    touching: Mapping[str, tuple[int, ...]]
    """Statements that hand a name to a function, which may change what it stands for."""
    by_line: Mapping[int, tuple[int, ...]]
    """Every definition and lambda by its first line."""
    imports: Mapping[str, tuple[Import, ...]]
    """Imports at the top level, by the name bound."""
    stars: tuple[str, ...]
    """Modules of `from x import *`."""
    needs: tuple[tuple[str, str | None], ...]
    """All that is imported anywhere, as module and attribute."""
    handed: frozenset[str]
    """Definitions that code which runs at import may have handed on, such as to a registry."""
    effects: tuple[tuple[str, int], ...]
    """Statements that are executed at import for what they do elsewhere, such as `random.seed(1)`, and the first part
    of the name that they call or change."""


NO_SOURCE = ModuleSource((), {}, {}, {}, {}, (), (), frozenset(), ())


def parse(text: str | bytes) -> ModuleSource:
    """Return what a source text says; SyntaxError when it is none."""
    with _deep():
        reading = _Reading()
        reading.statements(ast.parse(text).body, ())
        return reading.source()


def to_json(source: ModuleSource) -> list[Any]:  # Any: JSON
    """Return a source as JSON, for `from_json`."""
    return [
        [[*piece[:_HINTS], [list(hint) for hint in piece.hints], *piece[_HINTS + 1 :]] for piece in source.pieces],
        source.definitions,
        source.touching,
        list(source.by_line.items()),
        {name: [list(each) for each in found] for name, found in source.imports.items()},
        source.stars,
        source.needs,
        sorted(source.handed),
        source.effects,
    ]


def from_json(data: Sequence[Any]) -> ModuleSource:  # Any: JSON
    """Return the source that was written; raises TypeError or ValueError when it is none."""
    pieces, definitions, touching, by_line, imports, stars, needs, handed, effects = data
    return ModuleSource(
        _Pieces(pieces),
        {name: tuple(numbers) for name, numbers in definitions.items()},
        {name: tuple(numbers) for name, numbers in touching.items()},
        {line: tuple(numbers) for line, numbers in by_line},
        {name: tuple(Import(*each) for each in found) for name, found in imports.items()},
        tuple(stars),
        tuple((module, attribute) for module, attribute in needs),
        frozenset(handed),
        tuple((name, number) for name, number in effects),
    )


class _Pieces(Sequence[Piece]):
    """Pieces that were written as JSON, each made when it is asked for: most of a large package is never reached."""

    def __init__(self, data: list[Any]) -> None:  # Any: JSON
        self._data = data
        self._made: dict[int, Piece] = {}

    def __len__(self) -> int:
        return len(self._data)

    @overload
    def __getitem__(self, number: int) -> Piece: ...

    @overload
    def __getitem__(self, number: slice) -> list[Piece]: ...

    def __getitem__(self, number: int | slice) -> Piece | list[Piece]:
        if isinstance(number, slice):
            return [self[each] for each in range(*number.indices(len(self)))]
        made = self._made.get(number)
        if made is None:
            made = self._made[number] = piece_from(self._data[number])
        return made


class _Reading:
    """Reads the statements of one module, top level first."""

    def __init__(self) -> None:
        self.walk = Walk()
        self.definitions: dict[str, list[int]] = {}
        self.touching: dict[str, list[int]] = {}
        self.imports: dict[str, list[Import]] = {}
        self.executed: list[tuple[int, frozenset[str]]] = []
        """For each piece of the top level, the names that are evaluated when the module is imported."""
        self.effects: list[tuple[str, int]] = []
        self.is_script = False
        """Whether what is being read is executed in a script alone."""

    def statements(self, statements: Sequence[ast.stmt], conditions: tuple[int, ...]) -> None:
        for statement in statements:
            if isinstance(statement, ast.Import | ast.ImportFrom):
                self.imported(imports_of(statement))
            elif isinstance(statement, _OPEN_BLOCKS):
                self.open_block(statement, conditions)
            elif not isinstance(statement, ast.Pass) and not _is_text(statement):
                self.piece(statement, conditions)

    def imported(self, imports: Sequence[Import]) -> None:
        for each in imports:
            self.imports.setdefault(each.name, []).append(each)

    def open_block(self, block: ast.If | ast.Try | ast.TryStar, conditions: tuple[int, ...]) -> None:
        was_script = self.is_script
        if isinstance(block, ast.If):
            conditions = (*conditions, self.piece(block.test, conditions))
            self.is_script = was_script or _is_main(block.test)
        self.statements(block.body, conditions)
        self.is_script = was_script
        for handler in getattr(block, "handlers", ()):
            self.statements(handler.body, conditions)
        self.statements(block.orelse, conditions)
        self.statements(getattr(block, "finalbody", ()), conditions)

    def piece(self, node: ast.stmt | ast.expr, conditions: tuple[int, ...]) -> int:
        """Read one statement or condition; return its number."""
        walk = self.walk
        bound, filled, executed, events = (
            len(each) for each in (walk.scope.bound, walk.filled, walk.executed, walk.events)
        )
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            walk.write(node)
        else:
            kind = "statement" if isinstance(node, ast.stmt) else "condition"
            walk.pieces.append(walk.piece(node, kind, walk.write))
        walk.out.clear()
        number = len(walk.pieces) - 1
        for name in dict.fromkeys([*walk.scope.bound[bound:], *walk.filled[filled:], *_receivers(node)]):
            self.definitions.setdefault(name, []).extend([*conditions, number])
        if not self.is_script:
            self.effects += [(name, number) for name in dict.fromkeys([*walk.filled[filled:], *_called(node)])]
        names = frozenset(walk.executed[executed:])
        self.executed.append((number, names))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            for name in sorted(names - set(chain_of(node.value.func) or ())):
                self.touching.setdefault(name, []).append(number)
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            heads = [event[1] for event in walk.events[events:] if event[0] == "import"]
            self.imported([found._replace(name=name) for name, head in heads if (found := import_of(head))])
        return number

    def source(self) -> ModuleSource:
        pieces = self.walk.pieces
        for number, names in self.executed:
            for changed in self._changed_by(names):
                if number not in self.definitions.setdefault(changed, []):
                    self.definitions[changed].append(number)
        by_line: dict[int, list[int]] = {}
        for number, piece in enumerate(pieces):
            if piece.kind in {"function", "class", "lambda"}:
                by_line.setdefault(piece.first, []).append(number)
        inner = [found for event in self.walk.events if event[0] == "import" and (found := import_of(event[1][1]))]
        every = [*(each for found in self.imports.values() for each in found), *inner]
        executed = frozenset(name for number, names in self.executed for name in names)
        made = {pieces[number].name for number, _ in self.executed if pieces[number].handed}
        return ModuleSource(
            tuple(pieces),
            {name: tuple(numbers) for name, numbers in self.definitions.items()},
            {name: tuple(dict.fromkeys(numbers)) for name, numbers in self.touching.items()},
            {line: tuple(numbers) for line, numbers in by_line.items()},
            {
                name: tuple(dict.fromkeys(each for each in found if each.attribute != "*"))
                for name, found in self.imports.items()
                if name != "*"
            },
            tuple(dict.fromkeys(each.module for each in self.imports.get("*", ()))),
            tuple(dict.fromkeys((each.module, None if each.attribute == "*" else each.attribute) for each in every)),
            (executed & self.definitions.keys()) | made,
            tuple(self.effects),
        )

    def _changed_by(self, names: frozenset[str]) -> list[str]:
        """Return the module's names that calls of these functions and classes may change."""
        changers = self._changers()
        return sorted({changed for name in names & changers.keys() for changed in changers[name]})

    def _changers(self) -> dict[str, set[str]]:
        """Return the functions and classes that change names of the module, directly or through one another."""
        if not hasattr(self, "_found"):
            pieces = {piece.name: piece for piece in self.walk.pieces if self._is_top(piece)}
            found = {
                name: {chain[0] for chain in piece.changes if import_of(chain[0]) is None}
                for name, piece in pieces.items()
            }
            mentioned = {name: {chain[0] for chain in piece.names} & pieces.keys() for name, piece in pieces.items()}
            grown = True
            while grown:
                before = sum(map(len, found.values()))
                for name, others in mentioned.items():
                    found[name].update(*(found[other] for other in others))
                grown = sum(map(len, found.values())) > before
            self._found = {name: changed for name, changed in found.items() if changed}
        return self._found

    def _is_top(self, piece: Piece) -> bool:
        numbers = self.definitions.get(piece.name, ())
        return piece.kind in {"function", "class"} and any(self.walk.pieces[number] is piece for number in numbers)


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _is_main(test: ast.expr) -> bool:
    """Whether a condition is `__name__ == "__main__"`."""
    if not isinstance(test, ast.Compare) or chain_of(test.left) != ("__name__",):
        return False
    other = test.comparators[0]
    return isinstance(test.ops[0], ast.Eq) and isinstance(other, ast.Constant) and other.value == "__main__"


def _called(node: ast.AST) -> tuple[str, ...]:
    """Return the first part of the name that a statement calls for its effect."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        return (chain_of(node.value.func) or ())[:1]
    return ()


def _receivers(node: ast.AST) -> Iterator[str]:
    """Yield `x` of the statement `x.method(...)`, and of the decorator `@x.method`, which may change `x`."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield from _first_of_several(node.value.func)
    for decorator in getattr(node, "decorator_list", ()):
        yield from _first_of_several(decorator.func if isinstance(decorator, ast.Call) else decorator)
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        for block in ("body", "orelse", "cases"):  # of a loop, a `with`, a `match`
            inside = getattr(node, block, ())
            for inner in inside if isinstance(inside, list) else ():
                yield from _receivers(inner)


def _first_of_several(node: ast.AST) -> tuple[str, ...]:
    chain = chain_of(node) or ()
    return chain[:1] if len(chain) > 1 else ()


@contextmanager
def _deep() -> Iterator[None]:
    """Let expressions be as deep as Python's parser allows."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, _DEEP))
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


@dataclass(frozen=True)
class References:
    """What a definition mentions: dotted names, imports of its own, and what cannot be followed."""

    names: tuple[Chain, ...]
    imports: tuple[Import, ...]
    untracked: tuple[str, ...]


def references(node: ast.AST) -> References:
    """Return what a definition or statement mentions, type hints left out."""
    with _deep():
        piece = _piece(node)
    imports = [found._replace(name=name) for name, head in piece.imports if (found := import_of(head))]
    return References(piece.names, tuple(imports), piece.untracked)


def normal_form(node: ast.AST) -> str:
    """Return what counts of a definition or statement as one text, the imports inside it included."""
    walk = Walk()
    with _deep():
        walk.write(node)
    imports = [f" {event[1][0]}={event[1][1]}" for event in walk.events if event[0] == "import"]
    return "".join([*walk.out, *imports])


def _piece(node: ast.AST) -> Piece:
    walk = Walk()
    return walk.piece(node, "statement", walk.write)
