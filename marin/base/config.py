"""Configuration base class: frozen, strict, no unknown option.

Invariant: a `Config` that exists is valid, and never changes. It knows nothing of steps or stores.
"""

from typing import Annotated, Any, TypeVar

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
