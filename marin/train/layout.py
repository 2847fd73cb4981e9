"""Which piece of each parameter a rank holds, and what the whole of all pieces is.

A parameter is divided among tensor ranks first, by rows or by columns as its name says, then by rows among shards, the
way `fully_shard` divides. Invariant: pieces of all places joined are the whole, bit by bit; a layout knows no process
group and no model, so it also says what a run of any number of ranks would hold.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from marin.train.parallel import Axes

_BY_ROWS = ("q_proj.weight", "k_proj.weight", "v_proj.weight", "gate_proj.weight", "up_proj.weight")
_BIASES_BY_ROWS = ("q_proj.bias", "k_proj.bias", "v_proj.bias")
_BY_COLUMNS = ("o_proj.weight", "down_proj.weight")


@dataclass(frozen=True)
class Layout:
    """Where a rank stands; alone by default. Ranks of one copy of the state are neighbours, tensor ranks nearest."""

    axes: Axes = field(default_factory=Axes)
    rank: int = 0

    @property
    def divides(self) -> bool:
        """Whether a rank holds less than everything."""
        return self.num_places > 1

    @property
    def num_places(self) -> int:
        """Ranks that hold one whole state together."""
        return self.axes.shard * self.axes.tensor

    @property
    def place(self) -> int:
        """Number of this rank among them."""
        return self.rank % self.num_places

    @property
    def data_rank(self) -> int:
        """Number of this rank's data; tensor ranks read the same."""
        return self.rank // self.axes.tensor

    @property
    def data_ranks(self) -> int:
        """Ranks that read different data."""
        return self.axes.replicate * self.axes.shard

    @property
    def leads(self) -> bool:
        """Whether this rank speaks for its data, so that they are counted once."""
        return self.rank % self.axes.tensor == 0

    def cut(self, name: str) -> int | None:
        """Return the dimension in which tensor ranks divide this parameter; None: each has it whole."""
        if self.axes.tensor == 1:
            return None
        return 0 if name.endswith(_BY_ROWS + _BIASES_BY_ROWS) else 1 if name.endswith(_BY_COLUMNS) else None

    def copies(self, name: str) -> int:
        """Return how many ranks hold the same piece of this parameter."""
        return self.axes.replicate * (self.axes.tensor if self.cut(name) is None else 1)

    def piece(self, name: str, whole: Tensor, place: int | None = None) -> Tensor:
        """Return what a place (this rank's by default) holds of a whole parameter, or of anything of its shape."""
        shard = (self.place if place is None else place) // self.axes.tensor
        part = self.tensor_part(name, whole, place)
        if self.axes.shard == 1:
            return part
        rows = part.chunk(self.axes.shard)
        return rows[shard] if shard < len(rows) else part[:0]

    def tensor_part(self, name: str, whole: Tensor, place: int | None = None) -> Tensor:
        """Return what a place computes with: its part among tensor ranks, shards put together."""
        cut = self.cut(name)
        if cut is None:
            return whole
        return whole.chunk(self.axes.tensor, cut)[(self.place if place is None else place) % self.axes.tensor]

    def shape(self, name: str, whole: torch.Size, place: int | None = None) -> torch.Size:
        """Return the shape of a place's piece."""
        return self.piece(name, torch.empty(whole, device="meta"), place).shape

    def joined(self, name: str, pieces: Sequence[Tensor]) -> Tensor:
        """Return the whole of what all places hold, given in their order."""
        cut, tensors = self.cut(name), self.axes.tensor
        columns = [torch.cat(list(pieces[tensor::tensors])) for tensor in range(tensors if cut is not None else 1)]
        return columns[0] if cut is None else torch.cat(columns, cut)


WHOLE = Layout()
"""Of a rank that is alone."""
