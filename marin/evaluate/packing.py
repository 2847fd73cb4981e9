"""Requests laid out for few forward passes: contexts that begin alike and continuations of one context computed once.

A row is a context followed by all its continuations; each continuation sees the context and itself, and its positions
go on where the context ends (a tree mask). Rows whose contexts begin alike share that prefix, computed once for all.
Pure arithmetic on ids; what a layout costs is counted in tokens. Equal requests give equal layouts.
Shape letters: B rows, T positions of a row, P tokens of the prefix, M targets.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from marin.evaluate.requests import Request

ROW_TOKENS = 1024
"""A longer row is cut into several, since its mask grows with the square; one continuation is never cut."""
CLUSTER_TOKENS = 512
"""What a prefix of its own must save at least: one pass more, and batches that are less full."""
FULL_TOKENS = 1024
"""A batch of so many tokens keeps a processor busy, so that rows much shorter than its longest wait for the next."""
PREFIX_STEP = 16
"""Prefixes are multiples of this: fewer, hence fuller clusters."""


class Continuations(NamedTuple):
    """A context, and its continuations with the number of the request that each answers."""

    context: tuple[int, ...]
    continuations: list[tuple[int, tuple[int, ...]]]

    def length(self, prefix: int) -> int:
        """Tokens of the row behind a prefix; the last token of a continuation is only predicted."""
        return len(self.context) - prefix + sum(len(tokens) - 1 for _, tokens in self.continuations)


class Batch(NamedTuple):
    """One forward pass. Target m is predicted at position `places[m]` of row `rows[m]`, for request `owners[m]`."""

    prefix: tuple[int, ...]
    tokens: NDArray[np.int64]
    """[B, T], 0 where a row is shorter."""
    positions: NDArray[np.int64]
    """[B, T]"""
    mask: NDArray[np.bool_] | None
    """[B, T, P + T], true where a position sees the prefix or the row; None: plain rows, all before it."""
    rows: NDArray[np.int64]
    places: NDArray[np.int64]
    targets: NDArray[np.int64]
    owners: NDArray[np.int64]


def batches(requests: Sequence[Request], *, batch_tokens: int) -> Iterator[Batch]:
    """Yield the forward passes that answer distinct requests, rows of like length together, the longest first."""
    grouped: dict[tuple[int, ...], list[tuple[int, tuple[int, ...]]]] = {}
    for number, (context, continuation) in enumerate(requests):
        grouped.setdefault(context, []).append((number, continuation))
    contexts = sorted(grouped)
    for members, prefix in clusters(contexts):
        rows = [row for context in members for row in _rows(context, grouped[context], prefix)]
        rows.sort(key=lambda row: -row.length(prefix))
        lengths = [row.length(prefix) for row in rows]
        begin = 0
        while begin < len(rows):
            count = _count(lengths[begin:], prefix, batch_tokens)
            yield _batch(rows[begin].context[:prefix], rows[begin : begin + count])
            begin += count


def _count(lengths: Sequence[int], prefix: int, batch_tokens: int) -> int:
    """Return how many rows, the longest first, go together: few enough, and not too much padding."""
    longest = lengths[0]
    most = max(1, min(batch_tokens // longest, 8 * batch_tokens // (prefix + longest)))
    full = -(-FULL_TOKENS // longest)
    short = (place for place, length in enumerate(lengths) if place >= full and length < longest * 3 / 4)
    return min(most, next(short, len(lengths)))


def _rows(
    context: tuple[int, ...], continuations: list[tuple[int, tuple[int, ...]]], prefix: int
) -> Iterator[Continuations]:
    row = Continuations(context, [])
    for number, tokens in continuations:
        if row.continuations and row.length(prefix) + len(tokens) - 1 > ROW_TOKENS:
            yield row
            row = Continuations(context, [])
        row.continuations.append((number, tokens))
    yield row


def _batch(prefix: tuple[int, ...], rows: Sequence[Continuations]) -> Batch:
    shared = len(prefix)
    shape = (len(rows), rows[0].length(shared))
    tokens, positions = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    is_plain = not prefix and all(len(row.continuations) == 1 for row in rows)
    mask = None if is_plain else np.zeros((*shape, shared + shape[1]), bool)
    found: list[tuple[int, int, int, int]] = []
    for index, row in enumerate(rows):
        own = len(row.context) - shared
        spans = [(0, row.context[shared:], shared)]
        begin = own
        for number, continuation in row.continuations:
            places = [own - 1, *range(begin, begin + len(continuation) - 1)]
            found += [(index, place, target, number) for place, target in zip(places, continuation, strict=True)]
            spans.append((begin, continuation[:-1], len(row.context)))
            begin += len(continuation) - 1
        for start, span, position in spans:
            stop = start + len(span)
            tokens[index, start:stop] = span
            positions[index, start:stop] = range(position, position + len(span))
            if mask is not None and span:
                mask[index, start:stop, : shared + own] = start > 0
                mask[index, start:stop, shared + start : shared + stop] = np.tri(len(span), dtype=bool)
        if mask is not None:
            mask[index, :, :shared] = True
            unused = np.arange(begin, shape[1])
            mask[index, unused, shared + unused] = True  # a softmax over nothing is not a number
    columns = np.array(found, np.int64).T
    return Batch(prefix, tokens, positions, mask, *columns)


class Cluster(NamedTuple):
    """Contexts that begin with the same `prefix` tokens, each of them longer than that."""

    contexts: list[tuple[int, ...]]
    prefix: int


def clusters(contexts: Sequence[tuple[int, ...]]) -> list[Cluster]:
    """Cut sorted contexts into neighbours that share a prefix, so that the most tokens are saved.

    All that share nothing worth a pass of its own are one cluster without prefix, the last.
    """
    shared = [_common(*pair) // PREFIX_STEP * PREFIX_STEP for pair in pairwise(contexts)]
    parts = _best(shared, 0, len(contexts)).parts
    found = [Cluster(list(contexts[first:last]), prefix) for first, last, prefix in parts]
    taken = {context for cluster in found for context in cluster.contexts}
    alone = [context for context in contexts if context not in taken]
    return [*found, Cluster(alone, 0)] if alone else found


class _Cut(NamedTuple):
    """Clusters with a prefix, as `(first, last + 1, prefix)`, and the tokens that they save."""

    saved: int
    parts: list[tuple[int, int, int]]


def _best(shared: Sequence[int], first: int, last: int) -> _Cut:
    """Return the best cut of a stretch: one cluster of all, or the best of what is left between its weakest bonds."""
    inner = shared[first : last - 1]
    if not inner or not max(inner):
        return _Cut(0, [])
    prefix = min(inner)
    whole = prefix * len(inner) - CLUSTER_TOKENS if prefix else 0
    saved, parts, begin = 0, list[tuple[int, int, int]](), first
    if max(inner) > prefix:
        for border in [*(first + place for place, length in enumerate(inner) if length == prefix), last - 1]:
            below = _best(shared, begin, border + 1)
            saved, parts, begin = saved + below.saved, parts + below.parts, border + 1
    if saved > max(whole, 0):
        return _Cut(saved, parts)
    return _Cut(whole, [(first, last, prefix)]) if whole > 0 else _Cut(0, [])


def _common(left: tuple[int, ...], right: tuple[int, ...]) -> int:
    """Return how many tokens both begin with, less than either has."""
    most = min(len(left), len(right)) - 1
    low, high = 0, most
    while low < high:  # tuples compare at C speed
        middle = (low + high + 1) // 2
        low, high = (middle, high) if left[:middle] == right[:middle] else (low, middle - 1)
    return low
