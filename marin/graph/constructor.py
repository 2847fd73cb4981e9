"""Constructor: a step written down as data from which its Python expression can be written again.

Unlike a recipe it keeps what does not count (where files lie) and leaves out what equals its default; parents stand as
references. Invariant: it holds no Python text and no secret, only JSON, names of importable objects and calls of them,
so that nothing has to be evaluated to read it. What Python could not write again is marked opaque, never guessed.
`marin.graph.written` turns it into text.
"""

import enum
import inspect
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, is_dataclass
from dataclasses import fields as dataclass_fields
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from pathlib import Path, PurePath
from types import FunctionType
from typing import Any, get_args
from zoneinfo import ZoneInfo

from pydantic import AliasChoices, BaseModel, SecretBytes, SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from marin.base.config import placement_fields
from marin.base.json import Json, dumps
from marin.graph.step import Step

_SEQUENCES: dict[type, str] = {list: "list", tuple: "tuple", set: "set", frozenset: "frozenset"}
_EMPTY_FACTORIES = (dict, *_SEQUENCES)
_INCOMPARABLE = ("opaque", "secret")


def constructor_of(step: Step[Any]) -> dict[str, Json]:
    """Return what makes the step again: its class, the fields that are not their defaults, and its input patterns.

    `placement` names the fields that never count, so that a place may be written otherwise than it was given.
    """
    kind = type(step)
    marked = placement_fields(kind)
    placement = [_keyword(kind, name, field) for name, field in kind.model_fields.items() if name in marked]
    return {
        "class": _name(kind),
        "fields": _pairs(_model_fields(step, "")),
        "inputs": list(step.inputs()),
        "placement": placement,
    }


def opaque_places(expression: Json) -> Iterator[tuple[str, str]]:
    """Yield `(path, type)` of every value that cannot be written as Python again."""
    yield from _marked(expression, "opaque")


def secret_places(expression: Json) -> Iterator[tuple[str, str]]:
    """Yield `(path, type)` of every secret that was left out."""
    yield from _marked(expression, "secret")


def _marked(expression: Json, mark: str) -> Iterator[tuple[str, str]]:
    if isinstance(expression, Mapping):
        if mark in expression and "at" in expression:
            yield str(expression["at"]), str(expression[mark])
        for member in expression.values():
            yield from _marked(member, mark)
    elif isinstance(expression, list | tuple):
        for member in expression:
            yield from _marked(member, mark)


def _has_parent(expression: Json) -> bool:
    if isinstance(expression, Mapping):
        return "parent" in expression or any(_has_parent(member) for member in expression.values())
    return isinstance(expression, list | tuple) and any(_has_parent(member) for member in expression)


def _model_fields(model: BaseModel, path: str) -> dict[str, Json]:
    written: dict[str, Json] = {}
    for name, field in type(model).model_fields.items():
        value = getattr(model, name)
        below = f"{path}.{name}" if path else name
        hidden = isinstance(value, str) and not field.repr  # whoever hides it from `repr` means a secret
        expression = {"secret": "str", "at": below} if hidden else _expression(value, below)
        # Any other factory may answer otherwise tomorrow.
        empty: Any = field.default_factory if field.default_factory in _EMPTY_FACTORIES else None
        default = empty() if empty else _held_default(type(model), field)
        if default is PydanticUndefined or not _same(value, expression, default, below):
            written[_keyword(type(model), name, field)] = expression
    for name, value in (model.model_extra or {}).items():
        written[name] = _expression(value, f"{path}.{name}" if path else name)
    return written


def _held_default(kind: type[BaseModel], field: FieldInfo) -> object:
    """Return a field's default as the model holds it: `x: float = 120` is 120.0 once it is validated."""
    default = field.default
    is_float = field.annotation is float or set(get_args(field.annotation)) == {float, type(None)}
    return (
        float(default) if type(default) is int and is_float and kind.model_config.get("validate_default") else default
    )


def _same(value: object, expression: Json, default: object, path: str) -> bool:
    """Whether a field holds its default; compared by what would be written, as True equals 1 in Python."""
    if _has_parent(expression):  # a parent is always written, so that no step stands unused
        return False
    if any(True for mark in _INCOMPARABLE for _ in _marked(expression, mark)):
        return value is default
    return dumps(expression) == dumps(_expression(default, path))


def _keyword(kind: type[BaseModel], name: str, field: FieldInfo) -> str:
    """Return the name by which the constructor takes a field."""
    config = kind.model_config
    if config.get("populate_by_name") or config.get("validate_by_name"):
        return name
    alias = field.validation_alias
    if isinstance(alias, AliasChoices):
        alias = next((choice for choice in alias.choices if isinstance(choice, str)), None)
    return alias if isinstance(alias, str) else name


def _expression(value: object, path: str) -> Json:
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value  # type: ignore[return-value]  # these are JSON
    if kind is float:
        return _float(value)  # type: ignore[arg-type]
    if isinstance(value, Step):
        return {"parent": path}
    if isinstance(value, SecretStr | SecretBytes):
        return {"secret": kind.__name__, "at": path}
    if isinstance(value, enum.Enum) and _is_importable(kind, _name(kind)):
        return _member(value, path)
    if isinstance(value, FunctionType | type):
        found = _name(value)
        return {"name": found} if _is_importable(value, found) else _opaque(value, path)
    if isinstance(value, list | tuple | set | frozenset) and kind in _SEQUENCES:
        members = [_expression(member, f"{path}[{index}]") for index, member in enumerate(value)]
        # Sets do not know their order: sorted, so that equal steps are written alike.
        return {_SEQUENCES[kind]: sorted(members, key=dumps) if "set" in _SEQUENCES[kind] else members}
    if isinstance(value, Mapping) and kind is dict:
        return {
            "dict": [[_expression(key, path), _expression(item, f"{path}[{key!r}]")] for key, item in value.items()]
        }
    scalar = _scalar(value)
    return scalar if scalar is not None else _object(value, path)


def _object(value: object, path: str) -> Json:
    """Write a call of the value's class by keyword."""
    kind = type(value)
    if not _is_importable(kind, _name(kind)):
        return _opaque(value, path)
    if isinstance(value, BaseModel):
        return _call(kind, **_model_fields(value, path))
    if is_dataclass(kind):
        taken = set(inspect.signature(kind).parameters)
        known = {field.name: field for field in dataclass_fields(kind) if field.init}
        if taken == set(known):  # otherwise it takes what no field keeps
            written: dict[str, Json] = {}
            for name, field in known.items():
                held, below = getattr(value, name), f"{path}.{name}"
                expression = _expression(held, below)
                if field.default is MISSING or not _same(held, expression, field.default, below):
                    written[name] = expression
            return _call(kind, **written)
    return _opaque(value, path)


def _scalar(value: object) -> Json:
    """Write what Python makes from a few plain arguments; None when it is something else."""
    kind = type(value)
    if kind is bytes:
        return {"bytes": value.hex()}  # type: ignore[attr-defined]
    if kind is complex:
        return _call(complex, _float(value.real), _float(value.imag))  # type: ignore[attr-defined]
    if value is ...:
        return {"ellipsis": True}
    if isinstance(value, PurePath) and kind.__module__.startswith("pathlib"):
        return _call(Path if isinstance(value, Path) else kind, str(value))
    if kind is Decimal:
        return _call(Decimal, str(value))
    return _moment(value)


def _moment(value: object) -> Json:
    kind = type(value)
    if kind is date:
        return _call(date, value.year, value.month, value.day)  # type: ignore[attr-defined]
    if kind is timedelta:
        parts = {name: getattr(value, name) for name in ("days", "seconds", "microseconds")}
        return _call(timedelta, **{name: number for name, number in parts.items() if number})
    if not isinstance(value, datetime | time) or kind not in (datetime, time):
        return None
    zone = _zone(value.tzinfo)
    if value.tzinfo is not None and zone is None:
        return None
    named: dict[str, Json] = {} if zone is None else {"tzinfo": zone}
    named |= {"fold": value.fold} if value.fold else {}
    clock = [value.hour, value.minute, value.second, value.microsecond]
    while clock and not clock[-1]:
        clock.pop()
    day = [value.year, value.month, value.day] if isinstance(value, datetime) else []
    return _call(kind, *day, *clock, **named)


def _zone(zone: tzinfo | None) -> Json:
    """Write a time zone; None when there is none, or one that has no name."""
    if zone is UTC:
        return {"name": "datetime:UTC"}
    if type(zone) is timezone:
        return _call(timezone, _moment(zone.utcoffset(None)))
    if isinstance(zone, ZoneInfo) and zone.key:
        return _call(ZoneInfo, zone.key)
    return None


def _float(value: float) -> Json:
    return value if math.isfinite(value) else {"float": str(value)}


def _member(value: enum.Enum, path: str) -> Json:
    kind, name = type(value), value.name
    if name is not None and name.isidentifier() and kind.__members__.get(name) is value:
        return {"name": f"{_name(kind)}.{name}"}
    return _call(kind, _expression(value.value, path))  # flags that are set together have no name


def _call(function: Callable[..., Any], /, *args: Json, **named: Json) -> Json:
    return {"call": _name(function), "args": list(args), "named": _pairs(named)}


def _pairs(named: Mapping[str, Json]) -> list[Json]:
    """Return pairs, because the keys of a record are sorted, and fields read best in their own order."""
    return [[name, member] for name, member in named.items()]


def _opaque(value: object, path: str) -> Json:
    kind = value if isinstance(value, FunctionType | type) else type(value)
    return {"opaque": f"{kind.__module__}.{kind.__qualname__}", "at": path}


def _name(value: Callable[..., Any]) -> str:
    """Return `module:qualified.name`; what marin shows to users goes by its public place."""
    name = value.__qualname__
    public = vars(sys.modules["marin"]).get(name) if value.__module__.startswith("marin.") else None
    return f"marin:{name}" if public is value else f"{value.__module__}:{name}"


def _is_importable(value: object, name: str) -> bool:
    module, _, path = name.partition(":")
    found: object = sys.modules.get(module)
    for part in path.split("."):
        found = inspect.getattr_static(found, part, None)
    found = found.__func__ if isinstance(found, staticmethod) else found
    return found is value
