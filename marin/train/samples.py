"""What a model says to a few prompts while it trains: greedy, for people to read, and no part of any result.

Invariant: it draws no random numbers and changes no bit of the run. Every rank writes the same number of tokens through
the whole model, so that a model whose weights are spread over ranks can be read as well.
Shape letters: B prompts, T positions, D width.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from tokenizers import Tokenizer

from marin.model.decoder import LanguageModel


class Sample(NamedTuple):
    """A prompt and what the model wrote after it."""

    prompt: str
    completion: str


class Speaker:
    """Continues prompts as `Generate` would at temperature 0."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompts: Sequence[str],
        *,
        max_tokens: int,
        begins: Sequence[int],
        ends: Sequence[int],
    ) -> None:
        """`begins`: ids before each prompt where the tokenizer puts none itself; `ends`: ids that end a text."""
        tokenizer.encode_special_tokens = True
        encoding = tokenizer.encode("")
        leading = encoding.ids[: sum(encoding.special_tokens_mask)] or list(begins)
        self._tokenizer = tokenizer
        self._prompts = [(text, [*leading, *tokenizer.encode(text, add_special_tokens=False).ids]) for text in prompts]
        self._max_tokens = max_tokens
        self._ends = frozenset(ends)

    @torch.no_grad()
    def speak(self, model: LanguageModel, *, context: int, alive: Callable[[], None]) -> list[Sample]:
        """Return a sample for each prompt, in order; `alive` is called before each token."""
        rows = [list(ids) or [0] for _, ids in self._prompts]
        for _ in range(self._max_tokens):
            alive()
            for row, token in zip(rows, self._next(model, rows, context), strict=True):
                row.append(token)
        return [
            Sample(text, self._text(row[len(ids) or 1 :])) for (text, ids), row in zip(self._prompts, rows, strict=True)
        ]

    def _next(self, model: LanguageModel, rows: list[list[int]], context: int) -> list[int]:
        """Return the likeliest token after each row, of which the last `context` tokens are read."""
        device = model.output_weight.device
        lengths = [min(len(row), context) for row in rows]
        tokens_BT = torch.zeros(len(rows), max(lengths), dtype=torch.int64)
        for place, (row, length) in enumerate(zip(rows, lengths, strict=True)):
            tokens_BT[place, :length] = torch.tensor(row[-length:])  # what is behind is not seen
        found: list[int] = model.likeliest(tokens_BT.to(device), torch.tensor(lengths, device=device)).tolist()
        return found

    def _text(self, written: Sequence[int]) -> str:
        end = next((place for place, token in enumerate(written) if token in self._ends), len(written))
        return self._tokenizer.decode(list(written[:end]), skip_special_tokens=False)
