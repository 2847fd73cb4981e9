"""Code digests: the closure of first-party definitions that a step or function reaches.

A definition counts by its normal form (`marin.graph.source`) and by what its names mean: functions, classes with
their bases, constants, closures, defaults, `module.attr`, imports inside functions. Module names do not count, so a
moved file keeps its results. First-party is what the user edits: not the standard library, not installed packages,
and not marin itself, whose version is recorded. What cannot be followed is listed, never guessed.
"""

import ast
import hashlib
import importlib
import importlib.util
import inspect
import json
import sys
import sysconfig
import textwrap
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from types import FunctionType, ModuleType
from typing import Any

from marin.base.canonical import NOT_HANDLED, encode
from marin.base.errors import CanonicalError
from marin.base.json import Json
from marin.graph.source import ModuleSource, first_line, module_source, normal_form, parse, references

_ABSENT = object()
_INSTALLED = ("site-packages", "dist-packages")


@dataclass(frozen=True)
class CodeDigest:
    """What code is: one digest over all that is reached, and each definition's own for explanations."""

    digest: str
    definitions: dict[str, str]
    """Qualified name to the digest of its normal form."""
    untracked: tuple[str, ...]
    """Dynamic references that could not be followed, such as `count: getattr in line 3`."""


def digest_of(*roots: object) -> CodeDigest:
    """Return the code digest of functions and classes together with all first-party code they reach.

    Raises CanonicalError when the source of one cannot be read.
    """
    closure = _Closure()
    for root in roots:
        closure.add(root)
    return closure.finish()


def is_first_party(module: ModuleType | None) -> bool:
    """Whether a module is code that the user edits."""
    name = getattr(module, "__name__", "")
    if module is None or name.split(".")[0] in ("marin", "builtins"):
        return False
    file = getattr(module, "__file__", None)
    if file is None:
        return name == "__main__"
    return is_first_party_file(file)


@lru_cache(maxsize=65536)
def is_first_party_file(path: str) -> bool:
    """Whether a file is neither installed nor the standard library's."""
    standard = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))
    return not any(part in path for part in _INSTALLED) and not path.startswith(standard) and path.endswith(".py")


@dataclass
class _Closure:
    """Breadth-first: each definition gets a number when it is first met, and refers to others by number."""

    entries: list[Json] = field(default_factory=list)
    numbers: dict[object, int] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    untracked: list[str] = field(default_factory=list)
    queue: deque[tuple[int, Callable[[], Json]]] = field(default_factory=deque)
    forms: list[Json] = field(default_factory=list)
    """What the definition at hand says itself, whatever the numbers of the others."""

    def finish(self) -> CodeDigest:
        definitions: dict[str, str] = {}
        while self.queue:
            number, describe = self.queue.popleft()
            self.forms = []
            self.entries[number] = describe()
            definitions[self.names[number]] = _hash(self.forms)
        return CodeDigest(_hash(self.entries), definitions, tuple(dict.fromkeys(self.untracked)))

    def add(self, value: object, *, module: ModuleType | None = None, name: str = "") -> Json:
        """Return what a reference to `value` (bound to `name` in `module`) adds to the entry that mentions it."""
        if isinstance(value, classmethod | staticmethod):
            value = value.__func__
        if isinstance(value, ModuleType):
            return None
        if isinstance(value, type):
            return self._class(value) if is_first_party(_module_of(value)) else None
        if isinstance(value, FunctionType):
            return self._function(inspect.unwrap(value), module, name)
        return self._constant(value, module, name) if is_first_party(module) else None

    def _number(self, key: object, shown: str, describe: Callable[[], Json]) -> Json:
        if key not in self.numbers:
            self.numbers[key] = len(self.entries)
            self.entries.append(None)
            self.names.append(shown if shown not in self.names else f"{shown} ({len(self.names)})")
            self.queue.append((self.numbers[key], describe))
        return self.numbers[key]

    def _function(self, function: FunctionType, module: ModuleType | None, name: str) -> Json:
        home = _module_of(function)
        if not is_first_party(home):
            # A wrapper made by someone else's decorator: the definition that it wraps is found by its name.
            return self._constant(function, module, name) if is_first_party(module) and name else None
        assert home is not None
        shown = f"{home.__name__}.{function.__qualname__}"
        return self._number(function.__code__, shown, lambda: self._describe_function(function, home))

    def _describe_function(self, function: FunctionType, home: ModuleType) -> Json:
        node = _function_node(function, home)
        entry = self._describe([node], home, function.__qualname__)
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        closed = {name: self._held(_cell(cell), home, name) for name, cell in cells if name != "__class__"}
        defaults = [self._held(value, home, "") for value in (function.__defaults__ or ())]
        keywords = {name: self._held(value, home, "") for name, value in (function.__kwdefaults__ or {}).items()}
        return [entry, closed, defaults, keywords]

    def _held(self, value: object, home: ModuleType, name: str) -> Json:
        """Describe a value that a function carries: a closure cell or a default."""
        if isinstance(value, FunctionType | type | ModuleType):
            return self.add(value, module=home, name=name)
        return self._plain(value, home, name)

    def _class(self, kind: type) -> Json:
        home = _module_of(kind)
        assert home is not None
        shown = f"{home.__name__}.{kind.__qualname__}"
        return self._number(kind, shown, lambda: self._describe_class(kind, home))

    def _describe_class(self, kind: type, home: ModuleType) -> Json:
        bases = [self.add(base) for base in kind.__mro__[1:]]
        return [self._describe(_class_nodes(kind, home), home, kind.__qualname__), bases]

    def _constant(self, value: object, module: ModuleType | None, name: str) -> Json:
        assert module is not None
        key = (module.__name__, name)
        return self._number(key, f"{module.__name__}.{name}", lambda: self._describe_constant(value, module, name))

    def _describe_constant(self, value: object, module: ModuleType, name: str) -> Json:
        plain = self._plain(value, module, name)
        if plain is not None:
            return plain
        nodes = _source(module).definitions.get(name)
        if nodes is None:
            self.untracked.append(f"{module.__name__}.{name}: a {type(value).__name__} made at run time")
            return None
        return self._describe(list(nodes), module, name)

    def _plain(self, value: object, module: ModuleType, name: str) -> Json:
        """Return the canonical form of a plain value; None for a value that has none."""
        try:
            plain = encode(value, path=name, special=lambda member, path: self._member(member, module))
        except CanonicalError:
            return None
        self.forms.append(plain)
        return {"value": plain}

    def _member(self, value: object, module: ModuleType) -> Any:  # Any: JSON or NOT_HANDLED
        if isinstance(value, FunctionType | type):
            return {"$code": self.add(value, module=module)}
        return NOT_HANDLED

    def _describe(self, nodes: Iterable[ast.AST], home: ModuleType, shown: str) -> Json:
        entry: list[Json] = []
        for node in nodes:
            found = references(node)
            self.untracked.extend(f"{shown}: {text}" for text in found.untracked)
            meant = [[".".join(chain), self._resolve(chain, home)] for chain in found.names]
            imported = [[attribute, self._imported(name, attribute, home)] for name, attribute in found.imports]
            self.forms.append(normal_form(node))
            entry.append([self.forms[-1], [pair for pair in (*meant, *imported) if pair[1] is not None]])
        return entry

    def _resolve(self, chain: tuple[str, ...], home: ModuleType) -> Json:
        value: object = vars(home).get(chain[0], _ABSENT)
        module, name = home, chain[0]
        for attribute in chain[1:]:
            if not isinstance(value, ModuleType):
                break
            module, name, value = value, attribute, getattr(value, attribute, _ABSENT)
        return None if value is _ABSENT else self.add(value, module=_binder(module, name), name=name)

    def _imported(self, name: str, attribute: str | None, home: ModuleType) -> Json:
        """Follow an import inside a function, without importing anything that is not first-party."""
        package = getattr(home, "__package__", None) or ""
        try:
            absolute = importlib.util.resolve_name(name, package)
            spec = importlib.util.find_spec(absolute.split(".")[0])
            if spec is None or not spec.origin or not is_first_party_file(spec.origin) or absolute.startswith("marin."):
                return None
            module = importlib.import_module(absolute)
        except ImportError:
            self.untracked.append(f"{home.__name__}: import of {name}")
            return None
        value = getattr(module, attribute, _ABSENT) if attribute else module
        return None if value is _ABSENT else self.add(value, module=module, name=attribute or "")


def _binder(module: ModuleType, name: str) -> ModuleType | None:
    """Return the module that defines `name`: the one that says so, or the one it was imported from."""
    if not is_first_party(module):
        return None
    if name in _source(module).definitions:
        return module
    value = vars(module).get(name)
    for other in [sys.modules.get(getattr(value, "__module__", "") or "")]:
        if other is not None and is_first_party(other):
            return other
    return module


def _module_of(value: Any) -> ModuleType | None:  # Any: a function or class
    return sys.modules.get(value.__module__ or "")


def _cell(cell: Any) -> object:  # Any: a closure cell
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None


def _source(module: ModuleType) -> ModuleSource:
    file = getattr(module, "__file__", None)
    return module_source(file) if file and file.endswith(".py") else ModuleSource({}, {})


def _function_node(function: FunctionType, home: ModuleType) -> ast.AST:
    source = _source(home)
    named = source.definitions.get(function.__qualname__, ())
    line = function.__code__.co_firstlineno
    found = next((node for node in named if first_line(node) == line), None) or source.by_line.get(line)
    return found if found is not None else _read_again(function)


def _class_nodes(kind: type, home: ModuleType) -> list[ast.AST]:
    nodes = _source(home).definitions.get(kind.__qualname__, ())
    found: list[ast.AST] = [node for node in nodes if isinstance(node, ast.ClassDef)]
    return found[-1:] or [_read_again(kind)]


def _read_again(value: Any) -> ast.AST:  # Any: a function or class
    """Return the syntax tree of what stands in no file (a notebook's cell) or inside a function."""
    try:
        source = parse(textwrap.dedent(inspect.getsource(value)))
    except (OSError, TypeError, SyntaxError) as error:
        raise CanonicalError(
            f"the source of {value.__qualname__} cannot be read, so its code cannot be fingerprinted: {error}",
            where=f"{value.__module__}.{value.__qualname__}",
            hint="put it in a file of its own and import it",
        ) from error
    return next(iter(source.by_line.values()))


def _hash(value: Json) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
