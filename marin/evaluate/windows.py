"""Rolling windows over one document: every token is scored exactly once, with as much context as the stride leaves.

Pure arithmetic. A document of n tokens is read as [eos, t1, ..., tn]; what is scored are t1 to tn.
"""

from collections.abc import Iterator
from typing import NamedTuple

from marin.base.errors import ConfigurationError


class Window(NamedTuple):
    """Inputs are positions `start` to `end` of [eos, t1, ..., tn], targets the positions one later.

    Targets before `first_scored` (a position of the inputs) were scored by the window before.
    """

    start: int
    end: int
    first_scored: int


def windows(num_tokens: int, *, context: int, stride: int) -> Iterator[Window]:
    """Yield the windows of a document; ConfigurationError unless 1 <= stride <= context."""
    if not 1 <= stride <= context:
        raise ConfigurationError(
            f"a stride of {stride} does not cover a context of {context}",
            where="Evaluate.stride",
            hint=f"choose a stride from 1 to {context}",
        )
    start = scored = 0
    while scored < num_tokens:
        end = min(start + context, num_tokens)
        yield Window(start, end, scored)
        scored = end
        start += stride
