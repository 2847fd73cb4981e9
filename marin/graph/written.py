"""Constructors written as Python: text that reads as if typed, with its imports.

Invariant: text is made from JSON by `repr` and from names that are identifiers; whatever else stands in a record is
refused, so that the text does what it says. It names and calls what the record names: whoever runs it trusts the store
that the record came from. Names never clash: imports of one name are told apart.
"""

import keyword
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from marin.base.errors import DataError
from marin.base.json import Json

WIDTH = 110
_INDENT = "    "
_BRACKETS = {"list": ("[", "]"), "tuple": ("(", ")"), "set": ("{", "}"), "frozenset": ("frozenset({", "})")}
_EMPTY = {"set": ("set(", ")"), "frozenset": ("frozenset(", ")")}


@dataclass
class Imports:
    """The names of one file: what is imported, and under which name."""

    taken: set[str] = field(default_factory=set)
    """Names that mean something else in the file."""
    modules: Mapping[str, str] = field(default_factory=dict)
    """Modules that the file finds under another name."""
    _known: dict[tuple[str, str], str] = field(default_factory=dict)

    def name(self, text: str) -> str:
        """Return how the file writes `module:Outer.inner`; DataError for what is no name."""
        module, _, path = text.partition(":")
        parts = [*module.split("."), *path.split(".")]
        if not all(part.isidentifier() and not keyword.iskeyword(part) for part in parts):
            raise _unreadable(f"{text!r} is no name")
        if module == "builtins":
            return path
        top, *rest = path.split(".")
        return ".".join([self._bound(self.modules.get(module, module), top), *rest])

    def _bound(self, module: str, name: str) -> str:
        if (module, name) not in self._known:
            bound, number = name, 1
            while bound in self.taken:
                number += 1
                bound = f"{name}_{number}"
            self.taken.add(bound)
            self._known[module, name] = bound
        return self._known[module, name]

    def statements(self) -> dict[str, str]:
        """Return the import statement of each module, sorted."""
        by_module: dict[str, list[str]] = {}
        for (module, name), bound in sorted(self._known.items()):
            by_module.setdefault(module, []).append(name if bound == name else f"{name} as {bound}")
        found = {}
        for module, names in by_module.items():
            line = f"from {module} import {', '.join(names)}"
            long = "".join(f"{_INDENT}{name},\n" for name in names)
            found[module] = line if len(line) <= WIDTH else f"from {module} import (\n{long})"
        return found


class _Parts(NamedTuple):
    """A text in brackets: what each member is preceded by (`lr=`), and the member."""

    opening: str
    members: Sequence[tuple[str, Json]]
    closing: str
    comma: str = ""
    """Behind the only member of a tuple."""


@dataclass(frozen=True)
class Writer:
    """Writes expressions; `parent` gives the variable of the step that a path of a field refers to."""

    imports: Imports
    parent: Callable[[str], str]

    def step(self, constructor: Mapping[str, Any], suffix: str, depth: int, room: int) -> str:  # Any: JSON
        """Return the call that makes the step, then `suffix`, such as `.on(gpus=8)`, indented for its place.

        `room` is what its first line is preceded by. Raises DataError where it cannot be written.
        """
        fields = constructor.get("fields")
        if not isinstance(constructor.get("class"), str) or not isinstance(fields, list):
            raise _unreadable("it has no class and fields")
        call = {"call": constructor["class"], "args": [], "named": fields}
        try:
            return self.expression(call, depth, room + len(suffix)) + suffix
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise _unreadable(f"{type(error).__name__}: {error}") from error

    def expression(self, value: Json, depth: int, room: int = 0) -> str:
        """Return the text of an expression; one member a line where it is too long for one line."""
        flat = self._flat(value)
        parts = self._parts(value)
        if parts is None or not parts.members or len(flat) + room + len(_INDENT) * depth <= WIDTH:
            return flat
        inner = _INDENT * (depth + 1)
        lines = [f"{before}{self.expression(member, depth + 1, len(before) + 1)}" for before, member in parts.members]
        broken = "".join(f"{inner}{line},\n" for line in lines)
        return f"{parts.opening}\n{broken}{_INDENT * depth}{parts.closing}"

    def _flat(self, value: Json) -> str:
        parts = self._parts(value)
        if parts is None:
            return self._atom(value)
        members = ", ".join(f"{before}{self._flat(member)}" for before, member in parts.members)
        return f"{parts.opening}{members}{parts.comma}{parts.closing}"

    def _parts(self, value: Json) -> _Parts | None:
        """Return the members of a text in brackets; None for an atom."""
        if not isinstance(value, Mapping):
            return None
        content: Any = next(iter(value.values()), None)  # Any: JSON
        if "call" in value:
            return self._call(value)
        if "dict" in value:
            return _Parts("{", [(f"{self._flat(key)}: ", member) for key, member in value["dict"]], "}")  # type: ignore[union-attr,misc]
        kind = next((kind for kind in _BRACKETS if kind in value), None)
        if kind is None:
            return None
        opening, closing = _BRACKETS[kind] if content else _EMPTY.get(kind, _BRACKETS[kind])
        return _Parts(
            opening, [("", member) for member in content], closing, "," * (kind == "tuple" and len(content) == 1)
        )

    def _call(self, value: Mapping[str, Any]) -> _Parts:  # Any: JSON
        members: list[tuple[str, Json]] = [("", member) for member in value["args"]]
        strange: list[Json] = []
        for name, member in value["named"]:
            if name.isidentifier() and not keyword.iskeyword(name):
                members.append((f"{name}=", member))
            else:
                strange.append([name, member])
        members += [("**", {"dict": strange})] if strange else []
        return _Parts(f"{self.imports.name(str(value['call']))}(", members, ")")

    def _atom(self, value: Json) -> str:
        if isinstance(value, str):
            return quoted(value)
        if value is None or isinstance(value, bool | int | float):
            return repr(value)
        kind = next(iter(value), "") if isinstance(value, Mapping) and len(value) <= 2 else ""
        content: Any = value[kind] if isinstance(value, Mapping) and kind else value  # Any: JSON
        if kind == "name":
            return self.imports.name(str(content))
        if kind == "parent":
            return self.parent(str(content))
        if kind == "float" and content in ("nan", "inf", "-inf"):
            return f"float({content!r})"
        if kind == "bytes":
            return repr(bytes.fromhex(str(content)))
        if kind == "ellipsis":
            return "..."
        return self._left_out(value)

    def _left_out(self, value: Any) -> str:  # Any: JSON
        """Write what takes the place of a secret; DataError for what has no place."""
        where = str(value.get("at")) if isinstance(value, Mapping) else ""
        if where and value.get("secret") in ("SecretStr", "SecretBytes", "str"):
            kind = value["secret"]
            read = f"{self.imports.name('os:environ')}[{quoted(secret_variable(where))}]"
            return (
                read
                if kind == "str"
                else f"{self.imports.name(f'pydantic:{kind}')}({read}{'.encode()' if kind == 'SecretBytes' else ''})"
            )
        if where and "opaque" in value:
            raise DataError(
                f"`{where}` holds a {value['opaque']}, which cannot be written as Python",
                where=where,
                hint="use numbers, text, tuples, dicts, enums or a Config of such fields",
            )
        raise _unreadable(f"{value!r} is no expression")


def quoted(text: str) -> str:
    """Return a string literal, in double quotes where that needs no escape."""
    plain = repr(text)
    return f'"{plain[1:-1]}"' if "'" not in text and '"' not in text else plain


def secret_variable(path: str) -> str:
    """Return the environment variable from which what is written takes a secret: `auth.api_key` is `AUTH_API_KEY`."""
    return "".join(letter if letter.isalnum() else "_" for letter in path).strip("_").upper()


def _unreadable(what: str) -> DataError:
    return DataError(
        f"a step's constructor cannot be read: {what}",
        where="constructor in manifest.json",
        hint="write the step by hand from its recipe.json, or rerun its pipeline with this marin",
    )
