"""Keys and values kept from one forward pass to the next, and the pass that uses them.

The model's attention is the only place where positions meet, so the kept ones are put in there, at torch's
`scaled_dot_product_attention`, and the model itself knows nothing of it: any body that attends once a layer can be
continued. Positions and masks are the caller's.
Shape letters: B batch, T new positions, S kept positions, D width, G key-value heads, K head size.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from marin.model.decoder import LanguageModel
from marin.model.documents import Places


class Layer(NamedTuple):
    """What one layer keeps: two tensors `[B, G, S, K]`."""

    keys: Tensor
    values: Tensor


Cache = Sequence[Layer]
"""A pair a layer; a batch of one serves any number of rows."""


@torch.no_grad()
def continue_hidden(
    model: LanguageModel, tokens_BT: Tensor, positions_BT: Tensor, mask: Tensor | None, past: Cache = ()
) -> tuple[Tensor, list[Layer]]:
    """Return the hidden states `[B, T, D]` of new tokens, and their keys and values.

    `mask`: bool `[B, 1, T, S + T]`, true where a new position may see a kept or a new one; None: no past, causal.
    """
    body = model.transformer if model.config.family == "gpt2" else model.model
    attention = _Attention(model.config.num_kv_heads, past)
    with attention:
        hidden_BTD: Tensor = body(tokens_BT, Places(positions_BT, mask))
    assert len(attention.made) == model.config.layers, "the model does not attend once a layer"
    return hidden_BTD, attention.made


class _Attention(TorchFunctionMode):
    """Hands every layer's attention its past, and collects what is new."""

    def __init__(self, groups: int, past: Cache) -> None:
        super().__init__()
        self.made: list[Layer] = []
        self._groups = groups
        self._past = past

    def __torch_function__(  # Any: torch's own signature
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        options = dict(kwargs or {})
        if func is not F.scaled_dot_product_attention:
            return func(*args, **options)
        query, key, value = args
        copies = key.shape[1] // self._groups  # heads that were repeated for their group
        new = Layer(key[:, ::copies], value[:, ::copies])
        if self._past:
            seen = _joined(self._past[len(self.made)], new)
            options["enable_gqa"] = query.shape[1] != self._groups
            key, value = seen
        self.made.append(new)
        return func(query, key, value, **options)


def _joined(past: Layer, new: Layer) -> Layer:
    batch = new.keys.shape[0]
    pairs = zip(past, new, strict=True)
    return Layer(*(torch.cat([old.expand(batch, -1, -1, -1), fresh], dim=2) for old, fresh in pairs))


def appended(past: Cache, new: Cache) -> list[Layer]:
    """Return the cache with new positions behind the kept ones."""
    return [_joined(*pair) for pair in zip(past, new, strict=True)] if past else list(new)
