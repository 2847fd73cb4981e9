"""Continuations of prompts: greedy, or sampled with a seed.

Each next token is computed from the last `context` tokens anew: small models, few tokens. A prompt follows the
end-of-text token, as a document does in training.
"""

from collections.abc import Sequence
from typing import TypedDict

import torch
from torch import Tensor

from marin.evaluate.checkpoint import LoadedCheckpoint, load_checkpoint
from marin.graph.files import Contents


class Completion(TypedDict):
    """One row of the table."""

    prompt: str
    completion: str
    tokens: int
    """Tokens of the completion, the end-of-text token not counted."""
    ended: bool
    """Whether the model ended the text itself."""


def complete_prompts(
    contents: Contents, prompts: Sequence[str], *, max_tokens: int, temperature: float, seed: int
) -> list[Completion]:
    """Return one completion for each prompt, in order."""
    checkpoint = load_checkpoint(contents)
    return [
        complete(checkpoint, prompt, max_tokens=max_tokens, temperature=temperature, seed=seed + index)
        for index, prompt in enumerate(prompts)
    ]


@torch.no_grad()
def complete(
    checkpoint: LoadedCheckpoint, prompt: str, *, max_tokens: int, temperature: float, seed: int
) -> Completion:
    """Continue one prompt until the model ends the text or `max_tokens` are written."""
    generator = torch.Generator().manual_seed(seed)
    ids = [checkpoint.eos_id, *checkpoint.encode(prompt)]
    begin, ended = len(ids), False
    while len(ids) - begin < max_tokens:
        tokens_BT = torch.tensor([ids[-checkpoint.context :]], device=checkpoint.device)
        logits_V = checkpoint.model(tokens_BT)[0, -1].float().cpu()
        token = _choose(logits_V, temperature, generator)
        if token == checkpoint.eos_id:
            ended = True
            break
        ids.append(token)
    text: str = checkpoint.tokenizer.decode(ids[begin:], skip_special_tokens=False)
    return Completion(prompt=prompt, completion=text, tokens=len(ids) - begin, ended=ended)


def _choose(logits_V: Tensor, temperature: float, generator: torch.Generator) -> int:
    if temperature == 0:
        return int(logits_V.argmax())
    probabilities_V = torch.softmax(logits_V / temperature, dim=-1)
    return int(torch.multinomial(probabilities_V, 1, generator=generator))
