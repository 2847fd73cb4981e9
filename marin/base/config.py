"""Configuration base class: frozen, strict, no unknown option.

Invariant: a `Config` that exists is valid, and never changes. It knows nothing of steps or stores.
"""

from collections.abc import Iterator
from functools import lru_cache
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Strict, ValidationError

from marin.base.errors import ConfigurationError, did_you_mean

T = TypeVar("T")


class PlacementMark:
    """Marks a field that says where or how wide, and so stays out of the recipe."""


Placement = Annotated[T, PlacementMark()]
"""`Placement[int]`: a field that cannot change the bytes of the result and is never fingerprinted."""


Several = Annotated[tuple[T, ...], Strict(False)]
"""`Several[str]`: a tuple that also takes a list, so that both are one value and one fingerprint."""


class ElideIf:
    """`Annotated[int, ElideIf(0)]`: leaves the field out of the recipe while it equals this literal."""

    def __init__(self, literal: object) -> None:
        self.literal = literal


class Was:
    """`Annotated[int, Was("old_name")]`: hashes a renamed field under its old name."""

    def __init__(self, name: str) -> None:
        self.name = name


@lru_cache(maxsize=4096)
def placement_fields(kind: type[BaseModel]) -> frozenset[str]:
    """Return the names of the fields that are marked `Placement[...]`, alone or beside None.

    Raises ConfigurationError if a mark stands where it would mean nothing, such as in `list[Placement[int]]`.
    """
    found = set()
    for name, field in kind.__pydantic_fields__.items():
        optional = _is_optional_placement(field.annotation)
        if optional or any(map(_marks_placement, field.metadata)):
            found.add(name)
        inside = [] if optional else list(_marks_inside(field.annotation))
        if inside:
            mark = inside[0]
            shown = "Placement" if _marks_placement(mark) else type(mark).__name__
            whole = "Placement[...]" if shown == "Placement" else f"Annotated[..., {shown}(...)]"
            raise ConfigurationError(
                f"{kind.__name__}.{name}: `{shown}` stands inside the type, where it means nothing",
                where=f"{kind.__module__}.{kind.__qualname__}.{name}",
                hint=f"mark the whole field: `{name}: {whole}`",
            )
    return frozenset(found)


def _marks_placement(mark: object) -> bool:
    return isinstance(mark, PlacementMark) or mark is PlacementMark


def _is_optional_placement(annotation: object) -> bool:
    """Whether a type is `Placement[...] | None`."""
    annotation = getattr(annotation, "__value__", annotation)  # `type X = ...`
    if get_origin(annotation) not in (Union, UnionType):
        return False
    members = [member for member in get_args(annotation) if member is not type(None)]
    return all(any(map(_marks_placement, getattr(member, "__metadata__", ()))) for member in members)


def _marks_inside(annotation: object) -> Iterator[object]:
    """Yield the marks anywhere in a type."""
    annotation = getattr(annotation, "__value__", annotation)
    if get_origin(annotation) is Literal:
        return
    for mark in getattr(annotation, "__metadata__", ()):
        if _marks_placement(mark) or isinstance(mark, ElideIf | Was):
            yield mark
    for member in get_args(annotation):
        yield from _marks_inside(member)


class Config(BaseModel):
    """Base of every configuration: frozen, `extra="forbid"`, strict types.

    Raises ConfigurationError at construction, naming the field, what it expects and what it got.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        validate_default=True,
        arbitrary_types_allowed=True,
        protected_namespaces=(),
    )

    @classmethod
    def __pydantic_init_subclass__(cls, **options: Any) -> None:  # Any: pydantic's own
        super().__pydantic_init_subclass__(**options)
        if cls.__pydantic_complete__:  # with forward references it is checked when it is first fingerprinted
            placement_fields(cls)

    def __init__(self, **values: Any) -> None:  # Any: whatever the user typed; pydantic checks it
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise configuration_error(type(self), error) from None


def configuration_error(kind: type[BaseModel], error: ValidationError) -> ConfigurationError:
    """Turn pydantic's list of complaints into one error with a hint per field."""
    lines, hints = [], []
    for complaint in error.errors(include_url=False):
        path = ".".join(str(part) for part in complaint["loc"])
        if complaint["type"] == "extra_forbidden":
            lines.append(f"{kind.__name__} has no option `{path}`")
            near = did_you_mean(str(complaint["loc"][-1]), kind.model_fields)
            hints.append(near or f"its options are {', '.join(kind.model_fields)}")
        elif complaint["type"] == "missing":
            lines.append(f"{kind.__name__} needs `{path}`")
            hints.append(f"give {path}=...")
        else:
            lines.append(f"{kind.__name__}.{path}: {complaint['msg']} (got {complaint['input']!r})")
            hints.append(f"change `{path}`")
    return ConfigurationError("; ".join(lines), where=kind.__name__, hint="; ".join(dict.fromkeys(hints)))
