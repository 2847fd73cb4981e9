"""Continuations of prompts: greedy, or sampled by temperature and top-p.

Many prompts are continued at once with their keys and values kept. A row that is done leaves and the next prompt takes
its place, so that the batch stays as large as the memory allows. A text that outgrows the model's context is read
through a window of its last tokens, computed anew for each token. Every prompt has a row in the result, in order:
a completion, or what went wrong. Batch, order and neighbours change nothing beyond rounding of the logits.
Shape letters: B rows, T new positions, S kept positions, V vocabulary.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypedDict

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from marin.evaluate.cache import Layer, appended, continue_hidden
from marin.evaluate.checkpoint import LoadedCheckpoint
from marin.evaluate.sampling import choose, generator

Progress = Callable[[float, float, str], None]

NOT_FINITE = "the model's logits are not finite"


class Prompt(NamedTuple):
    """A text to continue; `id` names it in the result and, with the text, keys its random numbers."""

    id: str
    text: str
    ids: tuple[int, ...] = ()
    """Ids of the text, what it follows included, where the caller has them already."""


class Completion(TypedDict):
    """One row of the result."""

    id: str
    prompt: str
    completion: str
    tokens: int
    """Tokens that were written, those of a stop text counted, the end-of-text token not."""
    ended: bool
    """Whether the model ended the text itself, by the end-of-text token or a stop text."""
    cut: int
    """Tokens of the prompt that do not fit the model's context, cut off on the left."""
    error: str | None
    """Why there is no completion; None where there is one."""


@dataclass(frozen=True)
class Sampling:
    """How texts are continued."""

    max_tokens: int
    temperature: float = 0
    top_p: float = 1
    seed: int = 0
    stop: tuple[str, ...] = ()
    """Texts that end a completion, and are no part of it."""


@dataclass(eq=False)
class _Row:
    number: int
    ids: list[int]
    begin: int
    """Where the completion begins in `ids`."""
    draws: np.random.Generator
    completion: str | None = None
    ended: bool = False
    error: str | None = None

    @property
    def written(self) -> list[int]:
        return self.ids[self.begin :]


def complete_prompts(
    checkpoint: LoadedCheckpoint,
    prompts: Sequence[Prompt],
    sampling: Sampling,
    *,
    batch_tokens: int,
    progress: Progress | None = None,
) -> list[Completion]:
    """Return one completion for each prompt, in order; `batch_tokens`: positions kept at once, prompts included."""
    rows = [_row(checkpoint, prompt, sampling, number) for number, prompt in enumerate(prompts)]
    for done, _ in enumerate(_completed(_Writer(checkpoint, sampling), rows, batch_tokens), start=1):
        if progress is not None:
            progress(done, len(rows), "prompts")
    return [
        Completion(
            id=prompt.id,
            prompt=prompt.text,
            completion=row.completion or "",
            tokens=len(row.written),
            ended=row.ended,
            cut=max(0, row.begin - checkpoint.context),
            error=row.error,
        )
        for prompt, row in zip(prompts, rows, strict=True)
    ]


def _row(checkpoint: LoadedCheckpoint, prompt: Prompt, sampling: Sampling, number: int) -> _Row:
    ids = list(prompt.ids) or [*checkpoint.leading_ids, *checkpoint.encode(prompt.text)] or [*checkpoint.start_ids]
    return _Row(number, ids, len(ids), generator(sampling.seed, f"{prompt.id}\0{prompt.text}"))


def _completed(writer: "_Writer", rows: Sequence[_Row], batch_tokens: int) -> Iterator[_Row]:
    """Complete the rows, the longest first, and yield each when it is done."""
    context, max_tokens = writer.checkpoint.context, writer.sampling.max_tokens
    longest_first = sorted(rows, key=lambda row: -len(row.ids))
    sliding = [row for row in longest_first if len(row.ids) > context]
    waiting = [row for row in longest_first if len(row.ids) <= context]
    batch = _Batch.empty()
    while waiting or batch.rows:
        longest = max(len(row.ids) for row in [*waiting[:1], *batch.rows])
        room = max(1, batch_tokens // min(context, longest + max_tokens)) - len(batch.rows)
        if waiting and (not batch.rows or room > len(batch.rows)):
            batch = batch.joined(writer.begin(waiting[:room]))
            waiting = waiting[room:]
        else:
            batch = writer.step(batch)
        yield from (row for row in batch.rows if row.completion is not None)
        going = [place for place, row in enumerate(batch.rows) if row.completion is None]
        sliding += [batch.rows[place] for place in going if len(batch.rows[place].ids) > context]
        batch = batch.kept([place for place in going if len(batch.rows[place].ids) <= context])
    width = max(1, batch_tokens // context)
    for first in range(0, len(sliding), width):
        group = sliding[first : first + width]
        while group:
            writer.slide(group)
            yield from (row for row in group if row.completion is not None)
            group = [row for row in group if row.completion is None]


@dataclass(frozen=True)
class _Batch:
    """Rows that go on, and what is kept of them: a layer's tensors are `[B, G, S, K]`, `used_BS` says which count."""

    rows: list[_Row]
    past: list[Layer]
    used_BS: Tensor

    @classmethod
    def empty(cls) -> "_Batch":
        return cls([], [], torch.zeros(0, 0, dtype=torch.bool))

    def joined(self, other: "_Batch") -> "_Batch":
        """Return both, the shorter one's kept positions padded."""
        if not self.rows:
            return other
        size = max(self.used_BS.shape[1], other.used_BS.shape[1])
        left, right = self._widened(size), other._widened(size)
        past = [
            Layer(*(torch.cat(pair) for pair in zip(ours, theirs, strict=True)))
            for ours, theirs in zip(left.past, right.past, strict=True)
        ]
        return _Batch([*self.rows, *other.rows], past, torch.cat([left.used_BS, right.used_BS]))

    def _widened(self, size: int) -> "_Batch":
        more = size - self.used_BS.shape[1]
        if not more:
            return self
        past = [Layer(*(F.pad(tensor, (0, 0, 0, more)) for tensor in layer)) for layer in self.past]
        return _Batch(self.rows, past, F.pad(self.used_BS, (0, more)))

    def kept(self, places: list[int]) -> "_Batch":
        """Return these rows alone, without positions that none of them uses."""
        if len(places) == len(self.rows):
            return self
        if not places:
            return _Batch.empty()
        index = torch.tensor(places, device=self.used_BS.device)
        used_BS = self.used_BS[index]
        columns = used_BS.any(dim=0).nonzero()[:, 0]
        past = [Layer(*(tensor[index][:, :, columns] for tensor in layer)) for layer in self.past]
        return _Batch([self.rows[place] for place in places], past, used_BS[:, columns])


class _Writer:
    """A model that writes: each call adds one token to every row it is given, and closes those that end."""

    def __init__(self, checkpoint: LoadedCheckpoint, sampling: Sampling) -> None:
        self.checkpoint = checkpoint
        self.sampling = sampling

    def begin(self, rows: list[_Row]) -> _Batch:
        """Read prompts, padded to the right, which nothing before the padding sees."""
        device, lengths = self.checkpoint.device, [len(row.ids) for row in rows]
        tokens_BT = torch.zeros(len(rows), max(lengths), dtype=torch.int64)
        for place, row in enumerate(rows):
            tokens_BT[place, : lengths[place]] = torch.tensor(row.ids)
        positions_T = torch.arange(max(lengths), device=device)
        hidden_BTD, past = continue_hidden(self.checkpoint.model, tokens_BT.to(device), positions_T, None)
        ends_B = torch.tensor(lengths, device=device)
        self._write(rows, hidden_BTD[torch.arange(len(rows), device=device), ends_B - 1])
        return _Batch(rows, past, positions_T < ends_B.unsqueeze(1))

    def step(self, batch: _Batch) -> _Batch:
        """Read the token that was written last, behind what is kept."""
        device, used_BS = self.checkpoint.device, batch.used_BS
        tokens_BT = torch.tensor([[row.ids[-1]] for row in batch.rows], device=device)
        positions_BT = torch.tensor([[len(row.ids) - 1] for row in batch.rows], device=device)
        used_BS = torch.cat([used_BS, used_BS.new_ones(len(batch.rows), 1)], dim=1)
        hidden_BTD, new = continue_hidden(
            self.checkpoint.model, tokens_BT, positions_BT, used_BS[:, None, None, :], batch.past
        )
        past = appended(batch.past, new)
        self._write(batch.rows, hidden_BTD[:, -1])
        return _Batch(batch.rows, past, used_BS)

    @torch.no_grad()
    def slide(self, rows: list[_Row]) -> None:
        """Read the last tokens that fit the context, all anew."""
        window = [row.ids[-self.checkpoint.context :] for row in rows]
        hidden_BTD = self.checkpoint.model.hidden(torch.tensor(window, device=self.checkpoint.device))
        self._write(rows, hidden_BTD[:, -1])

    @torch.no_grad()
    def _write(self, rows: Sequence[_Row], hidden_BD: Tensor) -> None:
        sampling = self.sampling
        logits_BV = F.linear(hidden_BD, self.checkpoint.model.output_weight).float().cpu()
        finite_B = torch.isfinite(logits_BV).all(dim=1).tolist()
        draws = [float(row.draws.random()) if sampling.temperature else 0.0 for row in rows]
        tokens = choose(logits_BV.nan_to_num(0, 0, 0), draws, temperature=sampling.temperature, top_p=sampling.top_p)
        for row, token, is_finite in zip(rows, tokens, finite_B, strict=True):
            if is_finite:
                self._extend(row, token)
            else:
                row.error, row.completion, row.ids = NOT_FINITE, "", row.ids[: row.begin]

    def _extend(self, row: _Row, token: int) -> None:
        """Add a token to a row; close it when the text ends or is as long as it may be."""
        if token in self.checkpoint.stop_ids:
            row.ended, row.completion = True, self._decoded(row)
            return
        row.ids.append(token)
        is_full = len(row.written) == self.sampling.max_tokens
        if not self.sampling.stop and not is_full:
            return
        text = self._decoded(row)
        found = [place for place in map(text.find, self.sampling.stop) if place >= 0]
        if found:
            row.ended, row.completion = True, text[: min(found)]
        elif is_full:
            row.completion = text

    def _decoded(self, row: _Row) -> str:
        text: str = self.checkpoint.tokenizer.decode(row.written, skip_special_tokens=False)
        return text
