"""Documents packed into one row: what may see what, and where each document's positions start.

Invariant: mask and positions come from the same segment ids, so neither can say something else than the other.
Shape letters: B batch, T positions.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class Places(NamedTuple):
    """Where every token of a batch stands, and which tokens it may see."""

    positions: Tensor
    """Integers `[T]`, the same for each row, or `[B, T]`."""
    mask: Tensor | None
    """bool `[B, 1, T, T]`, true where a query (second to last) sees a key; None: all tokens before it."""


def places(tokens_BT: Tensor, segments_BT: Tensor | None = None, positions_BT: Tensor | None = None) -> Places:
    """Return positions and mask; without segments each row is one document, positions 0 to T - 1.

    `segments_BT`: any integers, equal within a document, whose tokens are neighbours. A token sees the tokens of its
    own document up to itself, so what is masked adds an exact 0. `positions_BT`: given instead of counted.
    """
    length, device = tokens_BT.shape[1], tokens_BT.device
    if segments_BT is None:
        counted = torch.arange(length, device=device)
        return Places(counted if positions_BT is None else positions_BT, None)
    same_BTT = segments_BT.unsqueeze(2) == segments_BT.unsqueeze(1)
    mask = (same_BTT & torch.ones(length, length, dtype=torch.bool, device=device).tril()).unsqueeze(1)
    return Places(document_positions(segments_BT) if positions_BT is None else positions_BT, mask)


def document_positions(segments_BT: Tensor) -> Tensor:
    """Return int64 `[B, T]`: how many tokens of the same run of equal segment ids stand before each."""
    index_T = torch.arange(segments_BT.shape[1], device=segments_BT.device)
    begins_BT = torch.ones_like(segments_BT, dtype=torch.bool)
    begins_BT[:, 1:] = segments_BT[:, 1:] != segments_BT[:, :-1]
    return index_T - (index_T * begins_BT).cummax(dim=1).values
