"""The one canonical serialiser: values to typed JSON, one text for one meaning.

Invariant: injective. 1, 1.0, True and "1" differ, a list is no tuple, sets and dicts do not know their order, floats
are exact. Never `repr`, `str`, pickle or `id`. JSON's own types stand for themselves; everything else is an object
with one key that begins with `$`, and a plain dict is `$dict`, so no value can imitate another. A value of an unknown
type is an error that names its path. Steps, functions and classes mean something only above this layer: a `special`
hook encodes them.
"""

import enum
import hashlib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields as dataclass_fields
from dataclasses import is_dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import PurePath
from typing import Any, Final

import orjson
from pydantic import BaseModel, SecretBytes, SecretStr

from marin.base.config import ElideIf, Was, placement_fields
from marin.base.errors import CanonicalError
from marin.base.json import Json, dumps


class NotHandled:
    """What a `special` hook answers for a value that it does not know."""


NOT_HANDLED: Final = NotHandled()
Special = Callable[[object, str], Json | NotHandled]

_SAFE_INTEGER = 2**53  # beyond, JSON readers round
_LONG_INTEGER = 10**4000  # beyond, Python refuses to write it in decimal
_DEEPEST = 100
_ABSENT = object()
_SORTED_SCALARS = (type(None), bool, str)


def encode(value: object, *, path: str, special: Special) -> Json:
    """Return `value` as canonical JSON; CanonicalError names `path` and what is below it."""
    return _Encoder(special).encode(value, path)


def encode_fields(model: BaseModel, *, path: str, special: Special) -> dict[str, Json]:
    """Return a model's fields that count, each encoded, under the names they are hashed by."""
    return _Encoder(special).fields(model, path)


def digest(value: Json) -> str:
    """Return the sha256 of a canonical value's one text form, in hex."""
    return hashlib.sha256(_text(value)).hexdigest()


def _text(value: Json) -> bytes:
    """Return the bytes that `dumps` gives; canonical values hold no floats, the one thing that orjson writes otherwise.

    Four times faster, and most of planning is this.
    """
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # lone surrogates of file names that are no UTF-8
        return dumps(value).encode("utf-8", "surrogatepass")


class _Encoder:
    def __init__(self, special: Special) -> None:
        self._special = special
        self._inside: list[int] = []
        """The collections around the value at hand, by id."""

    def encode(self, value: object, path: str) -> Json:
        special = self._special(value, path)
        if not isinstance(special, NotHandled):
            return special
        kind = type(value)
        if kind in _SORTED_SCALARS:
            return value  # type: ignore[return-value]  # None, bool and str are JSON
        if kind is int:
            return _integer(value)  # type: ignore[arg-type]
        if kind is float:
            return {"$float": _float(value)}  # type: ignore[arg-type]
        scalar = _scalar(value, path)
        if scalar is not None:
            return scalar
        if id(value) in self._inside:
            hint = "leave out the member that leads back to it"
            raise CanonicalError(f"{path}: a {type(value).__name__} contains itself", where=path, hint=hint)
        if len(self._inside) == _DEEPEST:
            hint = "flatten it, such as into a list of pairs"
            raise CanonicalError(f"{path}: nested deeper than {_DEEPEST} levels", where=path, hint=hint)
        self._inside.append(id(value))
        encoded = self._collection(value, path)
        self._inside.pop()
        return encoded

    def _collection(self, value: object, path: str) -> Json:
        kind = type(value)
        if kind is list:
            return self._members(value, path)  # type: ignore[arg-type]
        if kind is tuple:
            return {"$tuple": self._members(value, path)}  # type: ignore[arg-type]
        if kind in (set, frozenset):
            return {f"${kind.__name__}": sorted(self._members(value, path), key=dumps)}  # type: ignore[arg-type]
        if isinstance(value, Mapping) and kind is dict:
            pairs = [
                [self.encode(key, f"{path} key"), self.encode(item, f"{path}[{key!r}]")] for key, item in value.items()
            ]
            return {"$dict": sorted(pairs, key=dumps)}
        if isinstance(value, BaseModel):
            return {"$config": kind.__qualname__, "fields": self.fields(value, path)}
        if is_dataclass(value) and not isinstance(value, type):
            named = {
                field.name: self.encode(_attribute(value, field.name, path), f"{path}.{field.name}")
                for field in dataclass_fields(value)
            }
            return {"$dataclass": kind.__qualname__, "fields": named}
        raise _unknown(value, path)

    def _members(self, values: Iterable[object], path: str) -> list[Json]:
        return [self.encode(member, f"{path}[{index}]") for index, member in enumerate(values)]

    def fields(self, model: BaseModel, path: str) -> dict[str, Json]:
        encoded: dict[str, Json] = {}
        placed = placement_fields(type(model))
        for name, field in type(model).__pydantic_fields__.items():
            marks: list[Any] = field.metadata
            if name in placed:
                continue
            member = self.encode(_attribute(model, name, path), f"{path}.{name}")
            literals = [mark.literal for mark in marks if isinstance(mark, ElideIf)] if marks else ()
            if any(_text(member) == _text(self.encode(literal, path)) for literal in literals):
                continue  # compared as text: True equals 1 in Python
            hashed = name if not marks else next((mark.name for mark in marks if isinstance(mark, Was)), name)
            if hashed in encoded:
                raise CanonicalError(
                    f"{path}: two fields are hashed under the name `{hashed}`",
                    where=f"{path}.{name}",
                    hint=f'take `Was("{hashed}")` away, or rename the other field',
                )
            encoded[hashed] = member
        for name, value in (model.model_extra or {}).items():
            encoded[f"extra {name}"] = self.encode(value, f"{path}.{name}")
        return encoded


def _attribute(value: object, name: str, path: str) -> object:
    found = getattr(value, name, _ABSENT)
    if found is _ABSENT:
        hint = "give every field a value when you make it"
        raise CanonicalError(f"{path}.{name} was never set", where=f"{path}.{name}", hint=hint)
    return found


def _integer(value: int) -> Json:
    if abs(value) < _SAFE_INTEGER:
        return value
    return {"$int": str(value) if abs(value) < _LONG_INTEGER else hex(value)}


def _float(value: float) -> str:
    return "nan" if math.isnan(value) else value.hex()


def _scalar(value: object, path: str) -> Json:
    """Encode what is neither JSON's own nor a collection; None when it is something else."""
    if isinstance(value, enum.Flag):  # combinations have no name of their own
        return {"$enum": f"{type(value).__qualname__}({value.value})"}
    if isinstance(value, enum.Enum):
        return {"$enum": f"{type(value).__qualname__}.{value.name}"}
    if type(value) is datetime:
        if value.tzinfo is None:
            raise CanonicalError(
                f"{path}: the time {value} has no zone",
                where=path,
                hint="give an aware time, such as datetime(..., tzinfo=UTC)",
            )
        return {"$datetime": value.astimezone(UTC).isoformat()}
    if type(value) is date:
        return {"$date": value.isoformat()}
    if type(value) is timedelta:
        return {"$timedelta": [value.days, value.seconds, value.microseconds]}
    if type(value) is Decimal:
        return {"$decimal": list(map(str, value.as_tuple()))}
    if type(value) is bytes:
        return {"$bytes": value.hex()}
    if type(value) is complex:
        return {"$complex": [_float(value.real), _float(value.imag)]}
    if isinstance(value, PurePath):
        return {"$path": value.as_posix()}
    if value is ...:
        return {"$ellipsis": True}
    return None


def _unknown(value: object, path: str) -> CanonicalError:
    kind = type(value)
    name = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
    hints = {
        "functools.partial": "write a module-level function, and make its arguments fields of the configuration",
        "function": "use a function at the top of a module of your own",
    }
    hint = hints.get(name, "use numbers, text, tuples, dicts, enums or a Config of such fields")
    if kind.__module__ == "numpy":
        hint = "use Python's own numbers: float(x), int(x)"
    if isinstance(value, SecretStr | SecretBytes):
        hint = "name the secret, such as an environment variable, and read it in `run`"
    return CanonicalError(f"{path}: {name} cannot be fingerprinted", where=path, hint=hint)
