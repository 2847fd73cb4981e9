"""Step: a frozen, typed description of one computation that is its own configuration.

A dependency is a field whose value is a `Step[SomeArtifact]`, alone or in a list, tuple, dict or nested
configuration. Wrong wiring fails at construction. `.on`, `.named`, `.at` return copies and never count.
"""

import functools
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Generic, Self, TypeVar, get_args, get_origin

from pydantic import BaseModel, GetCoreSchemaHandler, PrivateAttr
from pydantic_core import CoreSchema, core_schema

from marin.base.config import Config
from marin.base.errors import ConfigurationError, WiringError
from marin.graph.artifact import Artifact
from marin.graph.resources import Resources

A_co = TypeVar("A_co", bound=Artifact, covariant=True)

NAMED = 6
"""Steps that a hint names at most."""

_WORD_BORDER = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


@dataclass(frozen=True, slots=True)
class Placed:
    """What `.on`, `.named` and `.at` said of a step; never part of its recipe."""

    resources: Resources = field(default_factory=Resources)
    name: str | None = None
    url: str | None = None


class Step(Config, Generic[A_co]):
    """Base of all steps; a subclass declares fields and `run`.

    Code counts by default: the digest of the class and of every first-party function it reaches is in the recipe.
    A subclass with `version = N` declares instead that its output means the same while the number stays.
    `requires` names third-party distributions whose versions count.
    """

    version: ClassVar[int | None] = None
    requires: ClassVar[tuple[str, ...]] = ()
    declared_name: ClassVar[str | None] = None

    _placed: Placed = PrivateAttr(default_factory=Placed)

    def __class_getitem__(cls, item: Any) -> Any:  # Any: keeps `Step[X]` a plain alias, not a new pydantic model
        return super(BaseModel, cls).__class_getitem__(item)  # type: ignore[misc]

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        if get_origin(source) is None:
            return handler(source)
        wanted = next(iter(get_args(source)), Artifact)

        def check(value: object, info: core_schema.ValidationInfo) -> object:
            owner = (info.config or {}).get("title", "")
            return _check_wiring(value, wanted, f"{owner}.{info.field_name}")

        return core_schema.with_info_plain_validator_function(check)

    @classmethod
    def __pydantic_init_subclass__(cls, **options: Any) -> None:  # Any: pydantic's own
        super().__pydantic_init_subclass__(**options)
        hidden = sorted(name for name in cls.model_fields if hasattr(Step, name))
        if hidden:
            raise ConfigurationError(
                f"{cls.__name__} has a field `{hidden[0]}`, which every step has as a method",
                where=f"{cls.__module__}.{cls.__name__}",
                hint="give the field another name",
            )

    @classmethod
    def step_name(cls) -> str:
        """Return the declared name in kebab case: `TrainTokenizer` is `train-tokenizer`."""
        return cls.declared_name or _kebab_case(cls.__name__)

    def artifact_type(self) -> type[Artifact]:
        """Return the type of artifact that this step produces."""
        return declared_artifact(type(self))

    def run(self, ctx: Any) -> A_co:  # Any: a Context; that module imports this one
        """Compute the artifact."""
        raise ConfigurationError(
            f"{type(self).__name__} has no `run`", where=type(self).__name__, hint="define run(self, ctx) -> artifact"
        )

    def inputs(self) -> tuple[str, ...]:
        """Return URL patterns of external files, pinned by content when planned. None by default."""
        return ()

    def check_resources(self, resources: Resources) -> None:
        """Raise ConfigurationError if the step cannot run on these resources; `.on` asks. All will do by default."""

    def on(
        self,
        *,
        cpus: float | None = None,
        gpus: int | None = None,
        nodes: int | None = None,
        min_nodes: int | None = None,
        shrink_after: float | None = None,
        ranks: int | None = None,
        memory: str | None = None,
        retries: int | None = None,
        hang_after: float | None = None,
        timeout: float | None = None,
    ) -> Self:
        """Return a copy with these resources; the fingerprint stays. ConfigurationError if it cannot run on them."""
        resources = self._placed.resources.with_changes(
            cpus=cpus,
            gpus=gpus,
            nodes=nodes,
            min_nodes=min_nodes,
            shrink_after=shrink_after,
            ranks=ranks,
            memory=memory,
            retries=retries,
            hang_after=hang_after,
            timeout=timeout,
        )
        self.check_resources(resources)
        return self._with_placed(replace(self._placed, resources=resources))

    def named(self, name: str) -> Self:
        """Return a copy that screens show under `name`; the fingerprint stays."""
        return self._with_placed(replace(self._placed, name=name))

    def at(self, url: str) -> Self:
        """Return a copy whose artifact is also published under `url`; the fingerprint stays.

        A path is one of the machine on which the run's driver is.
        """
        return self._with_placed(replace(self._placed, url=url))

    @property
    def placed(self) -> Placed:
        """What `.on`, `.named` and `.at` said."""
        return self._placed

    def _with_placed(self, placed: Placed) -> Self:
        copy = self.model_copy()
        copy._placed = placed
        return copy

    def __hash__(self) -> int:
        return hash(type(self))

    def __repr__(self) -> str:
        fields = (f"{name}={getattr(self, name)!r}" for name in type(self).model_fields)
        return f"{type(self).__name__}({', '.join(fields)})"

    __str__ = __repr__


@functools.lru_cache(maxsize=4096)
def _kebab_case(name: str) -> str:
    return _WORD_BORDER.sub("-", name).lower()


@functools.lru_cache(maxsize=4096)
def declared_artifact(kind: type[Step[Any]]) -> type[Artifact]:
    """Return the artifact type that the class header declares: `class Count(Step[Table])` gives Table."""
    for base in kind.__mro__:
        for alias in base.__dict__.get("__orig_bases__", ()):
            if get_origin(alias) is Step:
                found = get_args(alias)[0]
                found = get_origin(found) or found
                return found if isinstance(found, type) and issubclass(found, Artifact) else Artifact
    raise ConfigurationError(
        f"{kind.__name__} does not say what it produces",
        where=kind.__name__,
        hint=f"write class {kind.__name__}(Step[Table])",
    )


def dependencies(step: Step[Any]) -> Iterator[tuple[str, Step[Any]]]:
    """Yield `(path, parent)` for every step among the fields, such as `("data[2].left", step)`, in field order."""
    for name in type(step).__pydantic_fields__:
        yield from _steps_in(getattr(step, name), name)


def _steps_in(value: object, path: str) -> Iterator[tuple[str, Step[Any]]]:
    if isinstance(value, Step):
        yield path, value
    elif isinstance(value, BaseModel):
        for name in type(value).__pydantic_fields__:
            yield from _steps_in(getattr(value, name), f"{path}.{name}")
    elif isinstance(value, Mapping):
        for key, member in value.items():
            yield from _steps_in(member, f"{path}[{key!r}]")
    elif isinstance(value, list | tuple):
        for index, member in enumerate(value):
            yield from _steps_in(member, f"{path}[{index}]")


def _check_wiring(value: object, wanted: Any, where: str) -> Step[Any]:
    expected = get_origin(wanted) or wanted
    if isinstance(expected, TypeVar):
        expected = Artifact
    what = f"`{where}` expects a step that produces {expected.__name__}"
    field_name = where.rpartition(".")[2]
    if isinstance(value, type) and issubclass(value, Step):
        raise WiringError(
            f"{what}, got the class {value.__name__} itself",
            where=where,
            hint=f"make one: {field_name}={value.__name__}(...)",
        )
    if not isinstance(value, Step):
        raise WiringError(
            f"{what}, got {type(value).__name__} {value!r}",
            where=where,
            hint=f"give a step, such as {field_name}=SomeStep(...) with class SomeStep(Step[{expected.__name__}])",
        )
    produced = value.artifact_type()
    if not issubclass(produced, expected):
        raise WiringError(
            f"{what}, got {type(value).__name__}, which produces {produced.__name__}",
            where=where,
            hint=f"give a step that produces {expected.__name__}{_such_as(expected)}",
        )
    return value


def _such_as(expected: type[Artifact]) -> str:
    """Return the names of known steps that produce exactly this type; of a type that many produce a few."""
    known: list[type[Step[Any]]] = [Step]
    found = set()
    for kind in known:
        known += kind.__subclasses__()
        with suppress(ConfigurationError):  # a base class that leaves the type open
            if "[" not in kind.__name__ and declared_artifact(kind) is expected:
                found.add(kind.__name__)
    names = sorted(found)[:NAMED]
    return f", such as {', '.join(names[:-1])}{' or ' if names[1:] else ''}{names[-1]}" if names else ""
