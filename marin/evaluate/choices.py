"""Multiple choice and the likelihood of one continuation: from items to rows of the per-item table.

Four ways to prefer a choice are kept side by side: its log-likelihood (`acc`), that divided by the bytes of its text
(`acc_norm`) or by its tokens (`acc_per_token`). Choices that are equally likely share the credit, so that a model
that knows nothing scores chance; choices with the same text count as one answer.
"""

from collections.abc import Sequence
from typing import TypedDict

from marin.evaluate.checkpoint import LoadedCheckpoint
from marin.evaluate.items import Item
from marin.evaluate.requests import Pair, Request, encode_pairs
from marin.evaluate.scorer import Likelihood, Predictor, Progress, score_requests


class ItemRow(TypedDict, total=False):
    """One row of the per-item table; what does not apply to a kind of task is absent."""

    task: str
    id: str
    prompt_digest: str
    choices: list[str]
    """The choices, the one continuation, or the targets."""
    gold: int
    log_likelihoods: list[float]
    """In nats, one for each choice."""
    tokens: list[int]
    bytes: list[int]
    """Of each choice's own text; the delimiter and moved spaces are scored and not counted."""
    chosen: int
    """The most likely choice; the first of equals."""
    completion: str
    correct: bool
    """Whether the whole credit of `acc` was earned."""
    acc: float
    acc_norm: float
    acc_per_token: float
    cut: int
    """Most tokens of the prompt that were cut off on the left."""


def encode_items(
    checkpoint: LoadedCheckpoint, items: Sequence[Item], delimiter: str, *, chat: bool = False
) -> list[list[Request]]:
    """Return the requests of each item, one for each choice; `chat`: a template wrote the prompts."""
    pairs = [Pair(item.prompt, answer if chat else delimiter + answer) for item in items for answer in item.answers]
    requests = iter(encode_pairs(checkpoint, pairs, chat=chat))
    return [[next(requests) for _ in item.answers] for item in items]


def score_items(
    predictor: Predictor,
    items: Sequence[Item],
    requests: Sequence[Sequence[Request]],
    *,
    context: int,
    batch_tokens: int,
    progress: Progress | None = None,
) -> list[ItemRow]:
    """Return a row for each item, in order; DataError when any cannot be scored."""
    flat = [request for of_item in requests for request in of_item]
    scored = iter(score_requests(predictor, flat, context=context, batch_tokens=batch_tokens, progress=progress))
    return [_row(item, of_item, [next(scored) for _ in of_item]) for item, of_item in zip(items, requests, strict=True)]


def _row(item: Item, requests: Sequence[Request], likelihoods: Sequence[Likelihood]) -> ItemRow:
    log_likelihoods = [0.0 - each.nats for each in likelihoods]
    tokens = [each.tokens for each in likelihoods]
    sizes = [len(answer.encode()) for answer in item.answers]
    row = ItemRow(
        id=item.id,
        prompt_digest=item.prompt_digest,
        choices=list(item.answers),
        gold=item.gold,
        log_likelihoods=log_likelihoods,
        tokens=tokens,
        bytes=sizes,
        cut=max(each.cut for each in likelihoods),
    )
    if len(requests) == 1:
        greedy = likelihoods[0].greedy
        return row | ItemRow(correct=greedy, acc=float(greedy))
    right = [
        answer == item.answers[item.gold] or request == requests[item.gold]
        for answer, request in zip(item.answers, requests, strict=True)
    ]
    acc = credit(log_likelihoods, right)
    return row | ItemRow(
        chosen=log_likelihoods.index(max(log_likelihoods)),
        correct=acc == 1.0,
        acc=acc,
        acc_norm=credit([value / size for value, size in zip(log_likelihoods, sizes, strict=True)], right),
        acc_per_token=credit([value / size for value, size in zip(log_likelihoods, tokens, strict=True)], right),
    )


def credit(values: Sequence[float], right: Sequence[bool]) -> float:
    """Return the share of right ones among the choices with the highest value."""
    best = max(values)
    tied = [is_right for value, is_right in zip(values, right, strict=True) if value == best]
    return sum(tied) / len(tied)
