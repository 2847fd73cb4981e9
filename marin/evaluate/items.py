"""Rows of a task's table as items: rendered prompts with their examples, choices, gold.

Invariant: an item that exists can be scored; anything else is a DataError that names the row, so that no score is
ever one of a part of the rows. The examples are a function of their table, the seed and the item's own row.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from pyarrow import parquet

from marin import fs
from marin.base.errors import DataError, did_you_mean
from marin.evaluate.conversation import Asking, ChatPrompts
from marin.evaluate.task import Choices, Continuation, ExactMatch, Form, fields_of
from marin.graph.files import FileRef

Row = Mapping[str, Any]  # Any: a row of a table


class Item(NamedTuple):
    """One question as the model sees it."""

    id: str
    prompt: str
    """All text before the answer, examples included; as the chat template writes it where one is asked for."""
    answers: tuple[str, ...]
    """The choices; or the one continuation; or the targets, of which any will do."""
    gold: int
    """Index of the right choice; 0 where there is nothing to choose."""

    @property
    def prompt_digest(self) -> str:
        """First 16 hex digits of the prompt's sha256, so that runs can tell whether they asked the same."""
        return hashlib.sha256(self.prompt.encode()).hexdigest()[:16]


def read_rows(table: FileRef) -> list[dict[str, Any]]:
    """Return the rows of a Table's file."""
    with fs.open_file(table) as file, parquet.ParquetFile(file, pre_buffer=False) as opened:
        rows: list[dict[str, Any]] = opened.read(use_threads=False).to_pylist()
    return rows


def build_items(
    form: Form,
    rows: Sequence[Row],
    examples: Sequence[Row] | None,
    numbers: range,
    chat: ChatPrompts | None = None,
) -> list[Item]:
    """Return the items of the rows with these numbers; `examples` None takes them from the rows themselves."""
    order = example_order(form, len(rows) if examples is None else len(examples), from_rows=examples is None)
    source = rows if examples is None else examples
    shown: dict[int, tuple[str, str]] = {}

    def shot(number: int) -> tuple[str, str]:
        if number not in shown:
            shown[number] = _example(form, source[number], number)
        return shown[number]

    items = []
    for number in numbers:
        chosen = [other for other in order if examples is not None or other != number][: form.shots]
        row = _Rendered(rows[number], number)
        asking = Asking(form.description, [shot(other) for other in chosen], row.text(form.prompt))
        item = _item(form, row, asking.plain(form) if chat is None else chat.prompt(asking, where=f"row {number}"))
        if chat is not None:
            chat.check(item.answers, where=f"row {number}")
        items.append(item)
    return items


def example_order(form: Form, num_examples: int, *, from_rows: bool) -> list[int]:
    """Return the examples to take, the first for all items, and one more where an item may be its own example."""
    needed = form.shots + (1 if from_rows and form.shots else 0)
    if num_examples < needed:
        raise DataError(
            f"{form.shots} examples are asked for, and there are {num_examples} rows to take them from"
            + (" without an item's own" if from_rows else ""),
            where="Task.shots",
            hint="lower `shots`, or give more rows in `examples`",
        )
    order = np.random.Generator(np.random.Philox(form.seed)).permutation(num_examples)[:needed]
    return [int(number) for number in order]


def check_ids(form: Form, rows: Sequence[Row]) -> None:
    """Raise DataError when the field that names items does not tell them apart."""
    if form.id is None:
        return
    seen: dict[str, int] = {}
    for number, row in enumerate(rows):
        name = _Rendered(row, number).plain(form.id)
        if name in seen:
            raise DataError(
                f"rows {seen[name]} and {number} have the same id {name!r}",
                where=f"field `{form.id}`",
                hint="choose another field for `id`, or leave it out",
            )
        seen[name] = number


def _item(form: Form, row: "_Rendered", prompt: str) -> Item:
    name = str(row.number) if form.id is None else row.plain(form.id)
    if isinstance(form.answer, Choices):
        choices = row.choices(form.answer)
        own = row.text(form.prompt).strip()
        same = [number for number, choice in enumerate(choices) if choice.strip() == own and own]
        if same:
            raise row.error(f"choice {same[0]} is the prompt itself", "check the templates of prompt and choices")
        return Item(name, prompt, choices, row.gold(form.answer, choices))
    return Item(name, prompt, row.targets(form.answer), 0)


def _example(form: Form, row: Row, number: int) -> tuple[str, str]:
    """Return the prompt of an example and its answer."""
    rendered = _Rendered(row, number)
    if isinstance(form.answer, Choices):
        choices = rendered.choices(form.answer)
        answer = choices[rendered.gold(form.answer, choices)]
    else:
        answer = rendered.targets(form.answer)[0]
    return rendered.text(form.prompt), answer


class _Rendered:
    """A row and its number, for templates and for errors."""

    def __init__(self, row: Row, number: int) -> None:
        self.number = number
        self._row = row

    def error(self, what: str, hint: str) -> DataError:
        return DataError(what, where=f"row {self.number}", hint=hint)

    def value(self, field: str) -> Any:  # Any: whatever the row holds
        holder: Any = self._row
        for name in field.split("."):
            if not isinstance(holder, Mapping) or name not in holder:
                known = list(holder) if isinstance(holder, Mapping) else []
                near = did_you_mean(name, known) or f"there are {', '.join(known) or 'none'}"
                raise self.error(f"there is no field `{field}`", near)
            holder = holder[name]
        return holder

    def plain(self, field: str) -> str:
        value = self.value(field)
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            kind = "null" if value is None else type(value).__name__
            raise self.error(f"`{field}` holds {kind}, not text", "name a field that holds text or a number")
        return str(value)

    def text(self, template: str) -> str:
        return "".join(
            literal + (self.plain(field) if field is not None else "") for literal, field in fields_of(template)
        )

    def texts(self, field: str) -> tuple[str, ...]:
        value = self.value(field)
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise self.error(f"`{field}` holds no list of texts", "name a field that holds a list of texts")
        return tuple(value)

    def choices(self, answer: Choices) -> tuple[str, ...]:
        if answer.choices is not None:
            choices = self.texts(answer.choices)
        else:
            choices = tuple(self.text(option) for option in answer.options)
        if len(choices) < 2:
            raise self.error(f"{len(choices)} choices leave nothing to choose", "every row needs two or more")
        empty = [number for number, choice in enumerate(choices) if not choice.strip()]
        if empty:
            raise self.error(f"choice {empty[0]} is empty", "every choice needs text to score")
        return choices

    def gold(self, answer: Choices, choices: Sequence[str]) -> int:
        value = self.value(answer.gold)
        labels = self.texts(answer.labels) if answer.labels is not None else answer.names
        if labels and len(labels) != len(choices):
            raise self.error(f"{len(labels)} labels for {len(choices)} choices", "give one label for each choice")
        if isinstance(value, int) and not (labels and str(value) in labels):
            if not 0 <= value < len(choices):
                raise self.error(
                    f"the gold index {value} is none of {len(choices)} choices, which count from 0",
                    "mend the row; for numbers that are labels, give `labels` or `names`",
                )
            return int(value)
        known = labels or tuple(choices)
        if str(value) not in known:
            raise self.error(
                f"the gold {value!r} is none of {', '.join(map(repr, known))}",
                "mend the row, or say with `labels` or `names` what the gold means",
            )
        return known.index(str(value))

    def targets(self, answer: Continuation | ExactMatch) -> tuple[str, ...]:
        pieces = list(fields_of(answer.target))
        alone = pieces[0][1] if len(pieces) == 1 and not pieces[0][0] else None
        if isinstance(answer, ExactMatch) and alone is not None and isinstance(self.value(alone), list):
            targets = self.texts(alone)
        else:
            targets = (self.text(answer.target),)
        if not targets or not all(target.strip() for target in targets):
            raise self.error("the target is empty", "every row needs text to compare with or to score")
        return targets
