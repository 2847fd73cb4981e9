"""JSON as every verb writes it: `schema` first, one member a line, all letters as they are.

Invariant: what a terminal shows of it only shows; control characters are escaped, so that nothing is lost.
"""

import json
from typing import Any

import click

SCHEMA = 1


def write_json(record: Any) -> None:  # Any: JSON
    """Write a record to standard output, a member a line."""
    click.echo(json_text({"schema": SCHEMA, **record}, indent=1))


def write_json_line(record: Any) -> None:  # Any: JSON
    """Write a record to standard output on one line, where several follow each other."""
    click.echo(json_text({"schema": SCHEMA, **record}))


def json_text(record: Any, *, indent: int | None = None) -> str:  # Any: JSON
    """Return JSON without control characters but the line breaks between its members."""
    text = json.dumps(record, indent=indent, ensure_ascii=False)
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each == "\n" else json.dumps(each)[1:-1] for each in text)
