"""What a task asks of a model: configuration only, no torch.

A `Form` says how a row of data becomes text and how the answer is scored; a `Task` adds where the rows come from.
Templates name fields of a row in braces, nested ones with dots: `"{question}"`, `"{choices.text}"`; `{{` is a brace.
"""

import string
from collections.abc import Iterator
from typing import Self

from pydantic import Field, model_validator

from marin.base.config import Config, Several
from marin.base.errors import ConfigurationError
from marin.graph.artifact import Table
from marin.graph.step import Step


class Choices(Config):
    """Multiple choice: each choice is a continuation of the prompt, and the likeliest is the answer."""

    choices: str | None = None
    """Field that holds the list of choices."""
    options: Several[str] = ()
    """Templates of the choices instead, such as `("yes", "no")` or `("{a}", "{b}")`."""
    gold: str
    """Field that holds the right one: its index from 0, a truth value (false is 0), its label, or its text."""
    labels: str | None = None
    """Field that holds the list of labels, where the gold is a label."""
    names: Several[str] = ()
    """The labels instead, where they are the same for each row, such as `("A", "B", "C", "D")`."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        _one_of(self, "choices", "options")
        if self.labels is not None and self.names:
            _one_of(self, "labels", "names")
        if len(self.options) == 1:
            raise ConfigurationError(
                "a single option leaves nothing to choose", where="Choices.options", hint="give two or more"
            )
        for option in self.options:
            check_template(option, "Choices.options")
        return self


class Continuation(Config):
    """The likelihood of one text after the prompt: bits per byte, and whether it is the model's greedy answer."""

    target: str
    """Template of the text."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_template(self.target, "Continuation.target")
        return self


class ExactMatch(Config):
    """The model writes its answer, which must be equal to a target but for space around it."""

    target: str
    """Template of the target; a template that is one field, such as `{answers}`, may hold a list: any will do."""
    max_tokens: int = Field(ge=1)
    stop: Several[str] = ("\n",)
    """Texts that end the answer and are no part of it; the end-of-text token always does."""
    temperature: float = Field(default=0, ge=0, allow_inf_nan=False)
    top_p: float = Field(default=1, gt=0, le=1)
    seed: int = Field(default=0, ge=0)
    """Of sampling; greedy at temperature 0."""
    ignore_case: bool = False

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_template(self.target, "ExactMatch.target")
        if "" in self.stop:
            raise ConfigurationError(
                "an empty text would end every answer at once", where="ExactMatch.stop", hint="leave it out"
            )
        return self


class Form(Config):
    """How a row becomes a prompt, and how its answer is scored."""

    prompt: str
    """Template of the text before the answer."""
    answer: Choices | Continuation | ExactMatch
    delimiter: str = " "
    """Between a prompt and its answer."""
    description: str = ""
    """Before everything, once."""
    shots: int = Field(default=0, ge=0)
    """Examples with their answers before each prompt: the same ones in the same order for all items."""
    seed: int = Field(default=0, ge=0)
    """Chooses the examples and their order."""
    separator: str = "\n\n"
    """After the description and after each example."""
    id: str | None = None
    """Field that names an item; its row number by default."""

    @model_validator(mode="after")
    def _check_prompt(self) -> Self:
        check_template(self.prompt, f"{type(self).__name__}.prompt")
        return self


class Task(Form):
    """A named set of items and how they are asked."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Prefix of its scores: `arc-easy/acc`."""
    items: Step[Table]
    """Rows to score, such as `Items(url="arc-easy.jsonl")`."""
    examples: Step[Table] | None = None
    """Rows that examples are taken from; by default the items themselves, never the one that is asked."""

    @property
    def form(self) -> Form:
        """The task without its data: a value that can be sent to a map."""
        return Form(**{name: getattr(self, name) for name in Form.model_fields})


def fields_of(template: str) -> Iterator[tuple[str, str | None]]:
    """Yield the pieces of a template: literal text, then the field behind it or None; ValueError if it is none."""
    for literal, field, spec, conversion in string.Formatter().parse(template):
        if spec or conversion or (field is not None and not field.strip()):
            raise ValueError("a field is a name in braces, without format or conversion")
        yield literal, field


def check_template(template: str, where: str) -> None:
    """Raise ConfigurationError unless the text is a template."""
    try:
        list(fields_of(template))
    except ValueError as error:
        raise ConfigurationError(
            f"{template!r} is no template: {error}",
            where=where,
            hint="name fields as {question} or {choices.text}; write {{ and }} for braces",
        ) from None


def _one_of(config: Config, left: str, right: str) -> None:
    given = [name for name in (left, right) if getattr(config, name)]
    if len(given) != 1:
        raise ConfigurationError(
            f"{type(config).__name__} takes one of `{left}` and `{right}`, got {' and '.join(given) or 'neither'}",
            where=type(config).__name__,
            hint=f"give `{left}` or `{right}`",
        )
