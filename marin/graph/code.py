"""Code digests: the closure of first-party definitions that a step or function reaches.

A definition counts by its normal form (`marin.graph.source`) and by what its names mean: functions, classes with
their bases, constants, closures, defaults, `module.attr`, imports inside functions. Module names do not count, so a
moved file keeps its results. A module's plain value counts by value; one that a function changes in place, such as a
cache, counts as it is written, or every run would change its own code. First-party is what the user edits: not the
standard library, not installed packages, and not marin itself, whose version is recorded. What cannot be followed is
listed, never guessed.
"""

import ast
import enum
import functools
import hashlib
import inspect
import json
import sys
import textwrap
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, is_dataclass
from types import FunctionType, MethodType, ModuleType
from typing import Any

from pydantic import BaseModel

from marin.base.canonical import NOT_HANDLED, NotHandled, encode
from marin.base.errors import CanonicalError
from marin.base.json import Json
from marin.graph.loaded import (
    Globals,
    bytes_of,
    check_loaded,
    first_party_module,
    imported_origin,
    is_first_party,
    origin,
    source_of,
    stands_in_its_file,
)
from marin.graph.passages import Passage, modules, texts
from marin.graph.source import Import, References, normal_form, parse, references, span

_ABSENT = object()
_NEVER_CHANGES = (type(None), bool, int, float, complex, str, bytes, enum.Enum)


@dataclass(frozen=True)
class CodeDigest:
    """What code is: one digest over all that is reached, and each definition's own for explanations."""

    digest: str
    definitions: dict[str, str]
    """Qualified name to the digest of its normal form."""
    untracked: tuple[str, ...]
    """Dynamic references that could not be followed, such as `count: getattr in line 3`."""
    passages: tuple[Passage, ...] = field(default=(), repr=False, compare=False)
    """Where each stands, for `texts` and `modules`."""

    @functools.cached_property
    def texts(self) -> dict[str, str]:
        """The source text of each of `definitions`, as it was loaded; what has none, such as a value, is left out."""
        return texts(self.passages)

    @functools.cached_property
    def modules(self) -> dict[str, str]:
        """The whole text, as it was loaded, of each first-party module that is reached or that those need.

        Needed are their packages and what they import: written to files, these texts can be imported again.
        """
        return modules(self.passages)


_known: dict[tuple[object, ...], tuple[CodeDigest, "_Meanings"]] = {}


def digest_of(*roots: object) -> CodeDigest:
    """Return the code digest of functions and classes together with all first-party code they reach.

    Remembered for as long as every name that was met still means the same. Raises CanonicalError when the source of
    one cannot be read, or is not what was loaded.
    """
    known = _known.get(roots)
    if known is not None and known[1].hold():
        return known[0]
    closure = _Closure()
    for root in roots:
        closure.add(root)
    found = closure.finish()
    if len(_known) >= 1024:
        _known.clear()
    _known[roots] = found, closure.meanings
    return found


@dataclass
class _Meanings:
    """What names and values meant when a digest was made."""

    names: list[tuple[Globals, str, object]] = field(default_factory=list)
    values: list[tuple[object, Json]] = field(default_factory=list)
    """Values that can change in place, and their forms."""

    def hold(self) -> bool:
        return all(space.get(name, _ABSENT) is value for space, name, value in self.names) and all(
            _shape(value) == form for value, form in self.values
        )


@dataclass
class _Closure:
    """Breadth-first: each definition gets a number when it is first met, and refers to others by number."""

    entries: list[Json] = field(default_factory=list)
    numbers: dict[object, int] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    untracked: list[str] = field(default_factory=list)
    meanings: _Meanings = field(default_factory=_Meanings)
    queue: deque[tuple[int, Callable[[], Json]]] = field(default_factory=deque)
    forms: list[Json] = field(default_factory=list)
    """What the definition at hand says itself, whatever the numbers of the others."""
    spans: list[tuple[Globals, ast.AST]] = field(default_factory=list)
    """Where it stands."""

    def finish(self) -> CodeDigest:
        definitions: dict[str, str] = {}
        passages: list[Passage] = []
        while self.queue:
            number, describe = self.queue.popleft()
            self.forms, self.spans = [], []
            self.entries[number] = describe()
            definitions[self.names[number]] = _hash(self.forms)
            passages += _passages(self.names[number], self.spans)
        return CodeDigest(_hash(self.entries), definitions, tuple(dict.fromkeys(self.untracked)), tuple(passages))

    def add(self, value: object, space: Globals | None = None, name: str = "") -> Json:
        """Return what a reference to `value`, bound to `name` in a module, adds to the entry that mentions it."""
        if isinstance(value, classmethod | staticmethod):
            value = value.__func__
        if isinstance(value, ModuleType):
            return None
        if isinstance(value, type):
            return self._class(value, space, name)
        if isinstance(value, FunctionType):
            return self._function(value, space, name)
        wrapped = inspect.getattr_static(value, "__wrapped__", None)
        if isinstance(wrapped, FunctionType) and not name:  # an object of functools.cache that no name reaches
            return self.add(wrapped)
        return self._constant(value, space, name)

    def _number(self, key: object, shown: str, describe: Callable[[], Json]) -> Json:
        if key not in self.numbers:
            self.numbers[key] = len(self.entries)
            self.entries.append(None)
            self.names.append(shown if shown not in self.names else f"{shown} ({len(self.names)})")
            self.queue.append((self.numbers[key], describe))
        return self.numbers[key]

    def _function(self, function: FunctionType, space: Globals | None, name: str) -> Json:
        # Globals tell whose a function is: functools.wraps gives a wrapper the `__module__` of what it wraps.
        home = function.__globals__
        if is_first_party(home):
            shown = f"{home.get('__name__')}.{function.__code__.co_qualname}"
            return self._number(function, shown, lambda: self._describe_function(function))
        # A library's decorator made it: what it wraps counts, and the expression that made it.
        wrapped = inspect.unwrap(function)
        found = [self.add(wrapped) if wrapped is not function else None, self._constant(function, space, name)]
        return found if found != [None, None] else None

    def _describe_function(self, function: FunctionType) -> Json:
        check_loaded(function)
        home, code = function.__globals__, function.__code__
        entry = self._describe(_function_nodes(function), home, code.co_qualname)
        cells = zip(code.co_freevars, function.__closure__ or (), strict=True)
        shown = f"{home.get('__name__')}.{code.co_qualname}"
        closed = {name: self._held(_cell(cell), f"{shown}.{name}") for name, cell in cells if name != "__class__"}
        defaults = [self._held(value, f"{shown} default") for value in (function.__defaults__ or ())]
        keywords = {
            name: self._held(value, f"{shown}.{name}") for name, value in (function.__kwdefaults__ or {}).items()
        }
        return [entry, closed, defaults, keywords]

    def _class(self, kind: type, space: Globals | None, name: str) -> Json:
        home = vars(sys.modules[kind.__module__]) if kind.__module__ in sys.modules else {}
        if not is_first_party(home):
            return self._constant(kind, space, name)  # a library's, or an expression such as make_dataclass(...)
        nodes = _class_nodes(kind, home)
        if not nodes:  # namedtuple("N", ...), Enum("M", ...): the expression that made it is what there is
            bound = kind.__qualname__ if kind.__qualname__ in source_of(home).definitions else name
            return self._constant(kind, home if bound == kind.__qualname__ else space, bound)
        shown = f"{home['__name__']}.{kind.__qualname__}"
        return self._number(kind, shown, lambda: self._describe_class(kind, nodes, home))

    def _describe_class(self, kind: type, nodes: list[ast.AST], home: Globals) -> Json:
        bases = [self.add(base) for base in kind.__mro__[1:]]
        entry = self._describe(nodes, home, kind.__qualname__)
        methods = [value for value in vars(kind).values() if isinstance(value, FunctionType)]
        own = [method for method in methods if method.__globals__ is home]
        for method in own:
            check_loaded(method)
        closed = [
            self._held(_cell(cell), f"{kind.__qualname__}.{name}")
            for method in own
            for name, cell in zip(method.__code__.co_freevars, method.__closure__ or (), strict=True)
            if name != "__class__"
        ]
        return [entry, bases, closed]

    def _constant(self, value: object, space: Globals | None, name: str) -> Json:
        if space is None or not name or not is_first_party(space):
            return None
        found = origin(space, name)
        if found is None:
            return None
        home, bound = found
        shown = f"{home.get('__name__')}.{bound}"
        return self._number((id(home), bound), shown, lambda: self._describe_constant(value, home, bound, shown))

    def _describe_constant(self, value: object, home: Globals, name: str, shown: str) -> Json:
        source = source_of(home)
        nodes = source.definitions.get(name, ())
        if not isinstance(value, FunctionType | type) and not (name in source.changed and nodes):
            plain = self._plain(value, shown)
            if plain is not None:
                self.spans += [(home, node) for node in nodes]
                return plain
        imported = imported_origin(home, name)
        if not nodes and imported is None:
            self.untracked.append(f"{shown}: a {type(value).__name__} made at run time")
        return [self._describe(nodes, home, name), imported and self.add(value, *imported)]

    def _held(self, value: object, shown: str) -> Json:
        """Describe a value that a function carries: a closure cell or a default."""
        plain = self._plain(value, shown)
        if plain is None:
            self.untracked.append(f"{shown}: a {type(value).__name__} made at run time")
            return [self.add(type(value)), self.add(value)]
        return plain

    def _plain(self, value: object, shown: str) -> Json:
        """Return the canonical form of a plain value; None for a value that has none."""
        try:
            plain = encode(value, path=shown, special=self._member)
        except CanonicalError:
            return None
        if not isinstance(value, _NEVER_CHANGES):
            self.meanings.values.append((value, _shape(value)))
        self.forms.append(plain)
        return {"value": plain}

    def _member(self, value: object, path: str) -> Json | NotHandled:
        if isinstance(value, FunctionType | type):
            found = self.add(value)
            return {"$code": found} if found is not None else {"$library": _library_name(value)}
        if isinstance(value, ModuleType):
            return {"$module": None if is_first_party(vars(value)) else value.__name__}
        if isinstance(value, functools.partial | MethodType):
            return {"$bound": [encode(part, path=path, special=self._member) for part in _parts(value)]}
        if isinstance(value, BaseModel | enum.Enum) or is_dataclass(value):
            self.add(type(value))  # its methods
        return NOT_HANDLED

    def _describe(self, nodes: Iterable[ast.AST], home: Globals, shown: str) -> Json:
        entry: list[Json] = []
        for node in nodes:
            self.spans.append((home, node))
            form, found = _read_node(node)
            self.untracked.extend(f"{shown}: {text}" for text in found.untracked)
            local = {each.name: self._imported(each, home) for each in found.imports}
            meant = [[".".join(chain), self._resolve(chain, home, local)] for chain in found.names]
            brought = [[name, self.add(*bound)] for name, bound in local.items() if bound is not None]
            self.forms.append(form)
            entry.append([form, [pair for pair in (*meant, *brought) if pair[1] is not None]])
        return entry

    def _resolve(
        self, chain: tuple[str, ...], home: Globals, local: dict[str, tuple[object, Globals, str] | None]
    ) -> Json:
        name, *rest = chain
        if name in local:
            bound = local[name]
            if bound is None:
                return None
            value, space, name = bound
        else:
            value, space = self._look(home, name), home
        for attribute in rest:
            if not isinstance(value, ModuleType):
                break
            space, name = vars(value), attribute
            value = self._look(space, name)
        return None if value is _ABSENT else self.add(value, space, name)

    def _look(self, space: Globals, name: str) -> object:
        value = space.get(name, _ABSENT)
        self.meanings.names.append((space, name, value))
        return value

    def _imported(self, each: Import, home: Globals) -> tuple[object, Globals, str] | None:
        """Return what an import inside a function binds, importing nothing that is not first-party."""
        package = home.get("__package__") or ""
        try:
            module = first_party_module(each.module, package)
            if module is None:
                return None
            if each.attribute is None:
                return sys.modules[each.name] if each.top else module, {}, ""
            if self._look(vars(module), each.attribute) is _ABSENT:
                first_party_module(f"{module.__name__}.{each.attribute}", "")
        except ImportError:
            self.untracked.append(f"{home.get('__name__')}: import of {each.module}")
            return None
        return self._look(vars(module), each.attribute), vars(module), each.attribute


def _passages(name: str, spans: Iterable[tuple[Globals, ast.AST]]) -> list[Passage]:
    by_text: dict[bytes, tuple[Globals, list[tuple[int, int]]]] = {}
    for home, node in spans:
        text = getattr(node, "_text", b"") or bytes_of(home)
        by_text.setdefault(text, (home, []))[1].append(span(node))
    return [Passage(name, home, text, tuple(found)) for text, (home, found) in by_text.items()]


@functools.lru_cache(maxsize=65536)
def _read_node(node: ast.AST) -> tuple[str, References]:
    """Return the digest of a definition's normal form and what it mentions; read once for each definition."""
    return _hash(normal_form(node)), references(node)


def _shape(value: object) -> Json:
    """Return a form by which a change in place is seen; code in it counts by identity."""

    def special(member: object, path: str) -> Json | NotHandled:
        if isinstance(member, FunctionType | type | ModuleType | functools.partial | MethodType):
            return {"$id": id(member)}
        return NOT_HANDLED

    return encode(value, path="", special=special)


def _parts(value: Any) -> list[object]:  # Any: a partial or a bound method
    if isinstance(value, MethodType):
        return [value.__func__, value.__self__]
    return [value.func, value.args, value.keywords]


def _library_name(value: FunctionType | type) -> str:
    return f"{value.__module__}.{value.__qualname__}"


def _cell(cell: Any) -> object:  # Any: a closure cell
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None


def _function_nodes(function: FunctionType) -> list[ast.AST]:
    """Return the definition of a function; all lambdas of its line, for no one can tell them apart."""
    code = function.__code__
    if stands_in_its_file(function):
        kind = ast.Lambda if code.co_name == "<lambda>" else ast.FunctionDef | ast.AsyncFunctionDef
        starting = source_of(function.__globals__).by_line.get(code.co_firstlineno, ())
        found = [node for node in starting if isinstance(node, kind)]
        named: list[ast.AST] = [node for node in found if getattr(node, "name", "<lambda>") == code.co_name]
        if named:
            return named
    return [_read_again(function)]


def _class_nodes(kind: type, home: Globals) -> list[ast.AST]:
    """Return the definitions of a class; empty for one that an expression made."""
    if home.get("__file__") is None:
        return [_read_again(kind)]
    source = source_of(home)
    found: list[ast.AST] = [
        node for node in source.definitions.get(kind.__qualname__, ()) if isinstance(node, ast.ClassDef)
    ]
    inner = kind.__qualname__.rpartition(".")[2]
    return found or [
        node
        for nodes in source.by_line.values()
        for node in nodes
        if isinstance(node, ast.ClassDef) and node.name == inner and kind.__qualname__ != inner
    ]


def _read_again(value: Any) -> ast.AST:  # Any: a function or class
    """Return the syntax tree of what stands in no file, such as a notebook's cell."""
    try:
        text = textwrap.dedent(inspect.getsource(value))
        source = parse(text)
    except (OSError, TypeError, SyntaxError) as error:
        raise CanonicalError(
            f"the source of {value.__qualname__} cannot be read, so its code cannot be fingerprinted: {error}",
            where=f"{value.__module__}.{value.__qualname__}",
            hint="put it in a file of its own and import it",
        ) from error
    node = next(iter(source.by_line.values()))[0]
    setattr(node, "_text", text.encode())
    return node


def _hash(value: Json) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
