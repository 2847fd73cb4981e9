"""Canaries: models whose score is known, put through the code that scores real ones.

One prefers the gold always and must score 1; the others find every choice equally likely (in all, per token, per
byte) and must score chance in the measure that they are even in. A table answers by the ids of all that a position
sees, so that a wrong mask, border or offset shows too.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from marin.base.errors import MarinError
from marin.evaluate.choices import ItemRow, score_items
from marin.evaluate.items import Item
from marin.evaluate.packing import Batch
from marin.evaluate.requests import Request, fit
from marin.evaluate.scorer import Losses

NUM_ITEMS = 32
"""Items that each shard is checked on."""

Totals = Mapping[Request, float]


class CanaryError(MarinError):
    """A model whose score is known got another one: the task or the scoring is wrong, and so would every score be."""


class KnownPredictor:
    """Answers with a total loss for each known request, charged where the request ends."""

    def __init__(self, totals: Totals) -> None:
        self._charges: dict[tuple[int, ...], float] = {}
        ends = {(*request.context, *request.continuation): total for request, total in totals.items()}
        for context, continuation in totals:
            path, before = context, 0.0
            for token in continuation:
                path = (*path, token)
                total = ends.get(path, before)
                self._charges[path] = total - before
                before = total

    def losses(self, batch: Batch) -> Losses:
        """Return the charge of every target; a path that was never asked for is a KeyError of ours."""
        nats = np.array([self._charges[path] for path in _paths(batch)])
        return Losses(nats, nats == 0)


def _paths(batch: Batch) -> Iterable[tuple[int, ...]]:
    """Yield all ids that lead to each target, and the target."""
    shared = len(batch.prefix)
    for row, place, target in zip(batch.rows, batch.places, batch.targets, strict=True):
        if batch.mask is None:
            yield (*batch.tokens[row, : place + 1].tolist(), int(target))
        else:
            seen = batch.mask[row, place]
            assert seen[:shared].all()
            yield (*batch.prefix, *batch.tokens[row, seen[shared:]].tolist(), int(target))


@dataclass(frozen=True)
class Asked:
    """Items with their requests, and the model's context."""

    items: Sequence[Item]
    requests: Sequence[Sequence[Request]]
    context: int


def check_choices(asked: Asked) -> int:
    """Return how many items were checked; CanaryError unless the gold scores 1 and an even model chance.

    The first in every measure, the second in the one that it is even in.
    """
    asked = _apart(asked)
    gold = {
        request: 0.0 if request == requests[item.gold] else 64.0 * (len(request.continuation) + len(answer.encode()))
        for item, requests in _pairs(asked)
        for answer, request in zip(item.answers, requests, strict=True)
    }
    rows = _scored(asked, gold)
    for measure in ("acc", "acc_norm", "acc_per_token"):
        _expect(asked, rows, measure, lambda row: 1.0, "a model that always prefers the gold")
    evens: dict[str, Callable[[str, Request], float]] = {
        "acc": lambda answer, request: 64.0,
        "acc_norm": lambda answer, request: float(len(answer.encode())),
        "acc_per_token": lambda answer, request: float(len(request.continuation)),
    }
    for measure, even in evens.items():
        totals = {
            request: even(answer, request)
            for item, requests in _pairs(asked)
            for answer, request in zip(item.answers, requests, strict=True)
        }
        _expect(asked, _scored(asked, totals), measure, chance, "a model that finds every choice equally likely")
    return len(asked.items)


def check_continuations(asked: Asked) -> int:
    """Return how many items were checked; CanaryError unless a sure model loses nothing, one of a nat a token that."""
    asked = _apart(asked)
    for nats, correct in ((0.0, 1.0), (1.0, 0.0)):
        totals = {requests[0]: nats * len(requests[0].continuation) for _, requests in _pairs(asked)}
        rows = _scored(asked, totals)
        who = f"a model that loses {nats:g} nats a token"
        if any(-row["log_likelihoods"][0] != nats * row["tokens"][0] for row in rows):
            raise _wrong(who, "loss", "another loss")
        _expect(asked, rows, "acc", lambda row, correct=correct: correct, who)  # type: ignore[misc]
    return len(asked.items)


def chance(row: ItemRow) -> float:
    """Return what guessing earns: the share of choices that are the gold's text."""
    gold = row["choices"][row["gold"]]
    return row["choices"].count(gold) / len(row["choices"])


def _pairs(asked: Asked) -> Iterable[tuple[Item, Sequence[Request]]]:
    return zip(asked.items, asked.requests, strict=True)


def _apart(asked: Asked) -> Asked:
    """Return the first items that a table can tell apart: no prompt begins with another, no two choices are one."""
    items: list[Item] = []
    kept: list[Sequence[Request]] = []
    for item, requests in _pairs(asked):
        fitted = [fit(request, asked.context).request for request in requests]
        is_known = any(item.prompt.startswith(other.prompt) or other.prompt.startswith(item.prompt) for other in items)
        if is_known or len(set(fitted)) != len(set(item.answers)):
            continue
        if any(request.context != fitted[0].context for request in fitted) and len(fitted) > 1:
            continue  # cut, or the border moved: then paths of different choices may meet
        items.append(item)
        kept.append(fitted)
        if len(items) == NUM_ITEMS:
            break
    return Asked(items, kept, asked.context)


def _scored(asked: Asked, totals: Totals) -> list[ItemRow]:
    predictor = KnownPredictor(totals)
    return score_items(predictor, asked.items, asked.requests, context=asked.context, batch_tokens=4096)


def _expect(
    asked: Asked, rows: Sequence[ItemRow], measure: str, expected: Callable[[ItemRow], float], who: str
) -> None:
    for row in rows:
        if abs(row[measure] - expected(row)) > 1e-9:  # type: ignore[literal-required]
            raise _wrong(who, measure, f"{row[measure]:g} instead of {expected(row):g} on item {row['id']!r}")  # type: ignore[literal-required]


def _wrong(who: str, measure: str, got: str) -> CanaryError:
    return CanaryError(
        f"the canary failed: {who} scores {got} in `{measure}`",
        where="EvaluateTasks",
        hint="compare this item's prompt, choices and gold with its row; if they are right, please report this",
    )
