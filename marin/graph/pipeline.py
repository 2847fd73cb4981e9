"""Pipeline: a function that returns the steps wanted, with its parameters as typed options.

Building a pipeline is pure: it makes step values and touches nothing. The command line and Python meet here:
`parse` takes the texts that a user typed, `build` takes values, and both check them against the annotations.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from marin.base.errors import ConfigurationError, did_you_mean
from marin.graph.step import Step


@dataclass(frozen=True, slots=True)
class Option:
    """One typed parameter of a pipeline."""

    name: str
    type: Any  # Any: an annotation
    default: object
    required: bool
    help: str

    @property
    def is_flag(self) -> bool:
        """Whether the option alone, without a value, says true."""
        return _bare(self.type) is bool

    @property
    def is_sequence(self) -> bool:
        """Whether the command line splits the text at commas."""
        return get_origin(_bare(self.type)) in (tuple, list)

    def convert(self, text: str) -> object:
        """Return the value that a text of the command line stands for."""
        if text.lower() == "none" and type(None) in get_args(_bare(self.type)):
            return None
        if not self.is_sequence:
            return self._checked(_adapter(self.type).validate_strings, text)
        member = _adapter(get_args(_bare(self.type))[0])
        members = [self._checked(member.validate_strings, part) for part in text.split(",") if part]
        return self.check(get_origin(_bare(self.type))(members))

    def check(self, value: object) -> object:
        """Return a Python value, checked against the annotation."""
        return self._checked(partial(_adapter(self.type).validate_python, strict=True), value)

    def _checked(self, validate: Callable[[Any], object], value: object) -> object:
        try:
            return validate(value)
        except ValidationError as error:
            problem = error.errors(include_url=False)[0]["msg"]
            hint = f"give --{self.name} a value of type {type_text(self.type)}"
            raise ConfigurationError(f"option `{self.name}`: {problem} (got {value!r})", hint=hint) from None


@dataclass(frozen=True)
class Pipeline:
    """A function that returns steps, known by its name, description and options."""

    function: Callable[..., Step[Any] | Sequence[Step[Any]]]
    options: tuple[Option, ...]

    @property
    def name(self) -> str:
        """The function's name."""
        return self.function.__name__

    @property
    def description(self) -> str:
        """The function's docstring, or its module's, first paragraph."""
        module = inspect.getmodule(self.function)
        text = inspect.getdoc(self.function) or (module and inspect.getdoc(module)) or ""
        return text.split("\n\n")[0]

    def build(self, **values: object) -> tuple[Step[Any], ...]:
        """Return the steps wanted for these options; raises ConfigurationError for an unknown or ill-typed one."""
        return self._steps({name: self._option(name).check(value) for name, value in values.items()})

    def parse(self, texts: Mapping[str, str]) -> tuple[Step[Any], ...]:
        """Return the steps wanted for options as typed on the command line."""
        return self._steps({name: self._option(name).convert(text) for name, text in texts.items()})

    def __call__(self, **values: object) -> tuple[Step[Any], ...]:
        return self.build(**values)

    def _option(self, name: str) -> Option:
        known = {option.name: option for option in self.options}
        if name not in known:
            listed = f"its options are {', '.join(known)}" if known else "it has no options"
            hint = " ".join(filter(None, (did_you_mean(name, known), listed)))
            raise ConfigurationError(f"pipeline `{self.name}` has no option `{name}`", hint=hint)
        return known[name]

    def _steps(self, values: Mapping[str, object]) -> tuple[Step[Any], ...]:
        missing = [option.name for option in self.options if option.required and option.name not in values]
        if missing:
            raise ConfigurationError(
                f"pipeline `{self.name}` needs {', '.join(f'`{name}`' for name in missing)}",
                hint=f"add --{missing[0]} ...",
            )
        wanted = self.function(**values)
        steps = (wanted,) if isinstance(wanted, Step) else tuple(wanted) if isinstance(wanted, list | tuple) else None
        if not steps or not all(isinstance(step, Step) for step in steps):
            raise ConfigurationError(
                f"pipeline `{self.name}` returned {wanted!r}, which is no list of steps",
                where=self.function.__module__,
                hint="return the steps that are wanted, such as [Evaluate(...), Export(...)]",
            )
        return steps


def pipeline(function: Callable[..., Step[Any] | Sequence[Step[Any]]]) -> Pipeline:
    """Make a pipeline of a function; every parameter needs an annotation.

    A text in the annotation is the option's help: `lr: Annotated[float, "peak learning rate"] = 1e-3`.
    """
    hints = get_type_hints(function, include_extras=True)
    options = []
    for name, parameter in inspect.signature(function).parameters.items():
        if name not in hints or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise ConfigurationError(
                f"parameter `{name}` of pipeline `{function.__name__}` has no type",
                where=function.__module__,
                hint=f"annotate it, such as {name}: int",
            )
        required = parameter.default is parameter.empty
        options.append(Option(name, hints[name], None if required else parameter.default, required, _help(hints[name])))
    return Pipeline(function, tuple(options))


def _adapter(annotation: Any) -> TypeAdapter[Any]:  # Any: an annotation
    return TypeAdapter(annotation, config=ConfigDict(arbitrary_types_allowed=True))


def _bare(annotation: Any) -> Any:  # Any: an annotation
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def type_text(annotation: Any) -> str:  # Any: an annotation
    """Return an annotation as a user would write it."""
    annotation = _bare(annotation)
    return annotation.__name__ if isinstance(annotation, type) and not get_args(annotation) else str(annotation)


def _help(annotation: Any) -> str:  # Any: an annotation
    if get_origin(annotation) is not Annotated:
        return ""
    return next((extra for extra in get_args(annotation)[1:] if isinstance(extra, str)), "")
