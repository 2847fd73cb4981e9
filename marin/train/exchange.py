"""Pieces of parameters on their way between the ranks of one copy of the state: to rank 0, and to an owner and back.

Invariant: rank 0 alone decides which whole tensor is made next, and at most one stands in memory at once; the others
follow until it is done, or has failed. A matrix that an optimiser needs whole goes to one rank.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from marin.train.layout import Layout

_DONE = -1


class Exchange:
    """The ranks that hold one whole state together."""

    def __init__(self, layout: Layout) -> None:
        """Form the group; every rank of the run must call."""
        self._layout = layout
        places = layout.num_places
        firsts = range(0, places * layout.axes.replicate, places)
        groups = [dist.new_group(list(range(first, first + places))) for first in firsts]
        self._group = groups[layout.rank // places]

    def lead(self, write: Callable[[], None]) -> None:
        """Call `write`, which may ask for whole tensors (`Piece.detach`), on rank 0, while the others `follow`."""
        try:
            write()
        finally:
            self._ask(_DONE)

    def follow(self, pieces: Sequence["Piece"]) -> None:
        """Hand over what rank 0 asks for; returns when it is done. A copy of rank 0's group has nothing to do."""
        if self._layout.rank >= self._layout.num_places:
            return
        while (number := self._ask(0)) != _DONE:
            self._gather(pieces[number])

    def fetch(self, piece: "Piece") -> Tensor:
        """Return the whole tensor on rank 0, in the middle of `lead`."""
        self._ask(piece.number)
        return self._layout.joined(piece.name, self._gather(piece))

    def _ask(self, number: int) -> int:
        asked = torch.tensor([number], dtype=torch.int64)
        dist.broadcast(asked, 0, group=self._group)
        return int(asked)

    def _gather(self, piece: "Piece") -> list[Tensor]:
        """Return all pieces on rank 0, nothing elsewhere. What is sent has the size of the largest."""
        layout = self._layout
        shapes = [layout.shape(piece.name, piece.shape, place) for place in range(layout.num_places)]
        largest = max(shape.numel() for shape in shapes)
        sent = piece.local.new_zeros(largest)
        sent[: piece.local.numel()] = piece.local.reshape(-1)
        got = [torch.empty_like(sent) for _ in shapes] if layout.rank == 0 else None
        dist.gather(sent, got, dst=0, group=self._group)
        return [flat[: shape.numel()].view(shape) for flat, shape in zip(got or [], shapes, strict=False)]

    def through_owners(
        self, names: Sequence[str], local: Tensor, whole: torch.Size, make: Callable[[Tensor], Tensor]
    ) -> None:
        """Replace pieces of matrices of one shape by those of `make` of the whole matrices, each made by one rank.

        `local` `[n, rows, columns]`: this rank's pieces, replaced in place. `make` takes and returns `[1, *whole]`.
        """
        places = self._layout.num_places
        shapes = [self._layout.shape(names[0], whole, place) for place in range(places)]
        sizes = [shape.numel() for shape in shapes]
        own_size = sizes[self._layout.place]
        for first in range(0, len(names), places):
            mine = local[first : first + places]
            owns = self._layout.place < len(mine)
            sent = [own_size if owner < len(mine) else 0 for owner in range(places)]
            got = sizes if owns else [0] * places
            arrived = mine.new_empty(sum(got))
            dist.all_to_all_single(arrived, mine.reshape(-1), got, sent, group=self._group)
            returned = arrived
            if owns:
                pieces = [flat.view(shape) for flat, shape in zip(torch.split(arrived, sizes), shapes, strict=True)]
                made = make(self._layout.joined(names[0], pieces).unsqueeze(0))[0]
                parts = [self._layout.piece(names[0], made, place).reshape(-1) for place in range(places)]
                returned = torch.cat(parts)
            back = torch.empty_like(mine.reshape(-1))
            dist.all_to_all_single(back, returned, sent, got, group=self._group)
            mine.copy_(back.view_as(mine))


class Piece(NamedTuple):
    """What a rank holds of a tensor that is saved whole; to be written as a tensor is (`marin.model.weights`)."""

    exchange: Exchange
    number: int
    """The same on every rank."""
    name: str
    """Of the parameter that decides how it is divided."""
    local: Tensor
    shape: torch.Size
    """Of the whole."""

    @property
    def dtype(self) -> torch.dtype:
        """Of the whole and of each piece."""
        return self.local.dtype

    def detach(self) -> Tensor:
        """Return the whole on rank 0: only inside `Exchange.lead`."""
        return self.exchange.fetch(self)
