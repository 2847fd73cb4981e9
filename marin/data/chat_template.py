"""Chat templates: Jinja in a sandbox, as the Hugging Face hub has them, with the text of answers marked.

What a template sees is `messages`, `tools`, `add_generation_prompt` and the special tokens. Invariant: a rendering is a
function of these alone: no clock (`strftime_now` gives the date that was configured, or is not there), no file.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import date as Date
from itertools import pairwise
from typing import Any, NamedTuple

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from marin.base.errors import DataError

Message = Mapping[str, Any]  # Any: JSON


_FROM_EXPRESSIONS = (TypeError, LookupError, AttributeError, ValueError, ArithmeticError, RecursionError)
"""What Python raises for expressions of a template that its data do not suit."""


class Marks(NamedTuple):
    """Three characters that occur in nothing that is rendered: begin and end of an answer, and a cut in a word."""

    begin: str
    end: str
    cut: str


class TemplateError(Exception):
    """The template does not take this conversation; the text says why."""


class ChatTemplate:
    """Renders conversations. DataError when the template itself is no Jinja."""

    def __init__(self, source: str, tokens: Mapping[str, str], *, date: str | None = None) -> None:
        self.has_generation_tags = "generation" in _tags(source)
        self.source = source
        self._tokens = dict(tokens)
        self._environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
        )
        self._environment.filters["tojson"] = _to_json
        self._environment.globals["raise_exception"] = _raise
        if date is not None:
            self._environment.globals["strftime_now"] = _clock(date)
        try:
            self._template = self._environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise DataError(
                f"the chat template is no Jinja: {error.message}",
                where=f"line {error.lineno}",
                hint="mend the template",
            ) from error

    def render(
        self, messages: Sequence[Message], tools: Any, marks: Marks, *, add_generation_prompt: bool = False
    ) -> str:
        """Return a conversation as text, answers between marks where the template has `{% generation %}` tags.

        Raises TemplateError when the template refuses the conversation.
        """
        self._environment.marin_marks = marks  # type: ignore[attr-defined]  # an environment takes what extensions need
        try:
            return self._template.render(
                messages=messages, tools=tools, add_generation_prompt=add_generation_prompt, **self._tokens
            )
        except (jinja2.TemplateError, *_FROM_EXPRESSIONS) as error:
            raise TemplateError(str(error) or type(error).__name__) from error


class _Generation(Extension):
    """`{% generation %} ... {% endgeneration %}`: what stands between was said by the assistant."""

    tags = {"generation"}  # noqa: RUF012  jinja2's own protocol

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_marked"), [], [], body).set_lineno(line)

    def _marked(self, caller: Callable[[], str]) -> str:
        marks: Marks = self.environment.marin_marks  # type: ignore[attr-defined]
        return f"{marks.begin}{caller()}{marks.end}"


def _tags(source: str) -> set[str]:
    """Return the names of the block tags of a template, as jinja2 reads them."""
    try:
        tokens = list(jinja2.Environment().lex(source))
    except jinja2.TemplateSyntaxError:
        return set()
    kinds = [(kind, value) for _, kind, value in tokens if kind != "whitespace"]
    return {after[1] for before, after in pairwise(kinds) if before[0] == "block_begin"}


def _to_json(value: Any, indent: int | None = None, **options: Any) -> str:  # Any: JSON
    """`tojson` without HTML escapes, which the filter of jinja2 itself makes."""
    return json.dumps(value, ensure_ascii=False, indent=indent, **options)


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _clock(date: str) -> Callable[[str], str]:
    return Date.fromisoformat(date).strftime
