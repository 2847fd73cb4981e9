"""Exact match: the model writes an answer, and it is compared with the targets."""

from collections.abc import Sequence

from marin.base.errors import DataError
from marin.evaluate.canaries import CanaryError
from marin.evaluate.checkpoint import LoadedCheckpoint
from marin.evaluate.choices import ItemRow
from marin.evaluate.complete import Completion, Progress, Prompt, Sampling, complete_prompts
from marin.evaluate.items import Item
from marin.evaluate.requests import with_plain_offsets
from marin.evaluate.task import ExactMatch


def write_answers(
    checkpoint: LoadedCheckpoint,
    items: Sequence[Item],
    answer: ExactMatch,
    *,
    batch_tokens: int,
    chat: bool = False,
    progress: Progress | None = None,
) -> list[ItemRow]:
    """Return a row for each item, in order; DataError when the model cannot answer one."""
    if answer.max_tokens >= checkpoint.context:
        raise DataError(
            f"answers of {answer.max_tokens} tokens leave no room in the model's context of {checkpoint.context}",
            where="ExactMatch.max_tokens",
            hint="lower `max_tokens`, or score a model with a longer context",
        )
    sampling = Sampling(answer.max_tokens, answer.temperature, answer.top_p, answer.seed, answer.stop)
    parser = with_plain_offsets(checkpoint.tokenizer_json, parse=True) if chat else None
    prompts = [
        Prompt(item.id, item.prompt, () if parser is None else tuple(parser.encode(item.prompt).ids)) for item in items
    ]
    completions = complete_prompts(checkpoint, prompts, sampling, batch_tokens=batch_tokens, progress=progress)
    failed = [each for each in completions if each["error"]]
    if failed:
        raise DataError(
            f"{len(failed)} of {len(completions)} items got no answer: {failed[0]['error']}",
            where=f"item {failed[0]['id']}",
            hint="the run diverged: lower the learning rate, or score an earlier checkpoint",
        )
    return [_row(item, each, answer) for item, each in zip(items, completions, strict=True)]


def check_matches(checkpoint: LoadedCheckpoint, items: Sequence[Item], answer: ExactMatch) -> int:
    """Return how many items were checked.

    Raises CanaryError unless each target, tokenized and decoded, matches itself, and another text does not.
    """
    for item in items:
        target = item.answers[0]
        ids = checkpoint.encode(f" {target}")
        text: str = checkpoint.tokenizer.decode(ids, skip_special_tokens=False)
        if not matches(text, item.answers, answer) or any(stop in target.strip() for stop in answer.stop):
            raise CanaryError(
                f"the canary failed: a model that writes the target {target!r} would be counted wrong",
                where=f"item {item.id}",
                hint="check that no stop text is inside a target, and that the tokenizer keeps the text",
            )
        if matches(f"{target}\0", item.answers, answer):
            raise CanaryError(
                f"the canary failed: another text than the target {target!r} would be counted right",
                where=f"item {item.id}",
                hint="please report this with the task's definition",
            )
    return len(items)


def matches(text: str, targets: Sequence[str], answer: ExactMatch) -> bool:
    """Whether a text is one of the targets, but for space around it and, where asked, for case."""
    fold = str.casefold if answer.ignore_case else str
    return fold(text).strip() in {fold(target).strip() for target in targets}


def _row(item: Item, completion: Completion, answer: ExactMatch) -> ItemRow:
    correct = matches(completion["completion"], item.answers, answer)
    return ItemRow(
        id=item.id,
        prompt_digest=item.prompt_digest,
        choices=list(item.answers),
        completion=completion["completion"],
        tokens=[completion["tokens"]],
        correct=correct,
        acc=float(correct),
        cut=completion["cut"],
    )
