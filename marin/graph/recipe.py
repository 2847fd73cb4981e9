"""Recipe: the canonical record from which a fingerprint is computed.

The same record serves twice: with the parents' recipe fingerprints in place of the steps it is static, known before
anything runs; with their output digests it is resolved, and its fingerprint is the one that results are found by.
Equal parent bytes give the equal fingerprint: early cutoff. The record is kept for ever, so that any two results can
be compared field by field.
"""

import builtins
import enum
import functools
import importlib.metadata
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from types import FunctionType
from typing import Any, Final, TypeAlias

from pydantic import BaseModel

from marin.base import canonical
from marin.base.canonical import NOT_HANDLED, NotHandled
from marin.base.errors import CanonicalError, ConfigurationError
from marin.base.json import Json
from marin.graph.code.closure import CodeDigest, digest_of
from marin.graph.code.declared import SourceDigest, source_digest
from marin.graph.code.loaded import is_first_party
from marin.graph.files import FileRef, Shard
from marin.graph.step import Step, dependencies

SCHEMA = 1

Accepted: TypeAlias = Mapping[str, str]
"""What was blessed: the digest of changed code, and the digest of the earlier code whose results stay valid."""
NOTHING_ACCEPTED: Final[Accepted] = {}


@dataclass(frozen=True)
class Recipe:
    """What a step is made of, as JSON; `definitions` explain the code and do not count twice."""

    record: dict[str, Json]

    @functools.cached_property
    def fingerprint(self) -> str:
        """The sha256 of the record, 64 hex digits."""
        return canonical.digest({key: value for key, value in self.record.items() if key != "definitions"})


def recipe_of(
    step: Step[Any], parents: Callable[[Step[Any]], str], pins: Sequence[FileRef], accepted: Accepted = NOTHING_ACCEPTED
) -> Recipe:
    """Return the recipe of a step; `parents` gives the hash that stands for each step among its fields.

    Code that was blessed (`accepted`) stands under the digest of the code it was accepted for. Raises CanonicalError
    for a value without a canonical form, naming its path.
    """
    name = type(step).__name__
    known = {id(parent) for _, parent in dependencies(step)}

    def special(value: object, path: str) -> Json | NotHandled:
        if isinstance(value, Step) and id(value) not in known:
            raise CanonicalError(
                f"{path}: a step in a set or dataclass is not seen as a dependency",
                where=path,
                hint="put steps into fields, lists, tuples, dicts or nested configurations",
            )
        return {"$step": parents(value)} if isinstance(value, Step) else _special(value, path)

    record: dict[str, Json] = {
        "schema": SCHEMA,
        "step": step.step_name(),
        "artifact": step.artifact_type().type_name(),
        "config": canonical.encode_fields(step, path=name, special=special),
    }
    if step.inputs():
        record["inputs"] = [[file.path, file.size, file.digest] for file in pins]
    if step.requires:
        record["requires"] = {distribution: _installed(distribution, name) for distribution in step.requires}
    if step.version is not None:
        record["code"] = {"version": step.version}
    else:
        code = code_of(step)
        record["code"] = {"digest": accepted.get(code.digest, code.digest)}
        record["definitions"] = dict(code.definitions)
    return Recipe(record)


def code_of(step: Step[Any]) -> CodeDigest:
    """Return the code digest of a step: its class, and the classes of what stands in its configuration."""
    return digest_of(type(step), *_kinds(getattr(step, name) for name in type(step).model_fields))


def source_of(step: Step[Any]) -> CodeDigest | SourceDigest | None:
    """Return what the code of a step is now, whatever version it declares; None when its source cannot be read."""
    if step.version is None:
        return code_of(step)
    found = source_digest(type(step).__module__, type(step).__qualname__)
    if found is not None:
        return found
    try:
        return digest_of(type(step))  # a class of a notebook's cell, or of a function
    except CanonicalError:
        return None


def shard_fingerprint(
    step_class: type[Step[Any]], fn: Callable[..., Any], config: Mapping[str, object], shard: Shard
) -> str:
    """Return the fingerprint under which `fn(shard, **config)` is committed and found again.

    A step with a declared version speaks for its shard functions; otherwise the function's own code counts.
    """
    return canonical.digest([_call(step_class, fn, config), shard.digest])


def shard_fingerprints(
    step_class: type[Step[Any]], fn: Callable[..., Any], config: Mapping[str, object], shards: Sequence[Shard]
) -> list[str]:
    """Return the fingerprint of each shard, encoding the call once."""
    call = _call(step_class, fn, config)
    return [canonical.digest([call, shard.digest]) for shard in shards]


def _call(step_class: type[Step[Any]], fn: Callable[..., Any], config: Mapping[str, object]) -> Json:
    where = f"{step_class.__name__} map of {fn.__qualname__}"
    code: Json = {"step": step_class.step_name(), "version": step_class.version}
    if step_class.version is None:
        code = {"digest": digest_of(fn, *_kinds(config.values())).digest}
        if not is_first_party(getattr(fn, "__globals__", {})):  # not followed, so told apart by name
            code |= {"module": fn.__module__}
    return {
        "schema": SCHEMA,
        "function": fn.__qualname__,
        "code": code,
        "config": {
            name: canonical.encode(value, path=f"{where}.{name}", special=_special) for name, value in config.items()
        },
    }


def _special(value: object, path: str) -> Json | NotHandled:
    if isinstance(value, Step):
        raise CanonicalError(
            f"{path}: a step cannot be sent to a map", where=path, hint="load it first: ctx.load(step)"
        )
    if isinstance(value, FileRef):
        return {"$file": value.digest}
    if isinstance(value, Shard):
        return {"$shard": value.digest}
    if isinstance(value, FunctionType):
        if "<" in value.__qualname__:
            raise CanonicalError(
                f"{path}: the function {value.__qualname__} cannot be fingerprinted",
                where=path,
                hint="write it with `def` at the top of a module of your own",
            )
        if not is_first_party(value.__globals__):
            raise CanonicalError(
                f"{path}: the library function {value.__module__}.{value.__qualname__} cannot be fingerprinted",
                where=path,
                hint="call it from a function at the top of a module of your own, and give that",
            )
        return {"$function": value.__qualname__, "code": digest_of(value).digest}
    if isinstance(value, type):
        if not is_first_party(vars(sys.modules.get(value.__module__, builtins))):
            return {"$class": f"{value.__module__}.{value.__qualname__}"}
        return {"$class": value.__qualname__, "code": digest_of(value).digest}
    return NOT_HANDLED


def _kinds(values: Iterable[object]) -> list[type]:
    """Return the classes of configurations and enum members, whose methods are code that a step reaches."""
    kinds = {type(inner): None for value in values for inner in _values(value)}
    return sorted(kinds, key=lambda kind: (kind.__qualname__, kind.__module__))


def _values(value: object) -> Iterator[object]:
    """Yield the configurations and enum members in a field, nested ones too, not those of parent steps."""
    if isinstance(value, Step):
        return
    if isinstance(value, BaseModel):
        yield value
        for name in type(value).model_fields:
            yield from _values(getattr(value, name))
    elif isinstance(value, enum.Enum):
        yield value
    elif is_dataclass(value) and not isinstance(value, type):
        yield value
        for field in fields(value):
            yield from _values(getattr(value, field.name))
    elif isinstance(value, Mapping):
        for key, member in value.items():
            yield from _values(key)
            yield from _values(member)
    elif isinstance(value, list | tuple | set | frozenset):
        for member in value:
            yield from _values(member)


def _installed(distribution: str, step: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError as error:
        raise ConfigurationError(
            f"{step} requires {distribution!r}, which is not installed",
            where=f"{step}.requires",
            hint=f"pip install {distribution}",
        ) from error
