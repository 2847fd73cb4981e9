"""Ranks of one training run: how they meet, and the few things they say to each other.

Invariant: host values (counts, wishes to stop) go over gloo on the CPU, so asking the others never waits for a GPU;
gradients go over NCCL where there is CUDA. One rank alone needs no process group. It knows no Ray: any launcher that
gives a `Member` will do.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

import psutil
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from marin.base.errors import ClusterError
from marin.graph.context import Member
from marin.train.layout import Layout
from marin.train.parallel import Axes, Parallel

_TIMEOUT = timedelta(minutes=10)


class Ranks(Protocol):
    """The ranks of a run, seen from one of them."""

    @property
    def rank(self) -> int: ...

    @property
    def world_size(self) -> int: ...

    @property
    def layout(self) -> Layout:
        """What each of them holds, and which data it reads."""

    def agree(self, values: Sequence[int]) -> list[int]:
        """Return the sums of int64 values over all ranks, on the host."""

    def add(self, tensor: Tensor) -> None:
        """Replace a tensor by its sum over all ranks."""

    def share(self, key: str, text: str | None) -> str:
        """Return the text that rank 0 gives; the others give None."""

    def close(self) -> None:
        """Leave, once all ranks are done."""


class Alone:
    """The only rank."""

    rank = 0
    world_size = 1

    @property
    def layout(self) -> Layout:
        """This rank holds everything and reads all data."""
        return Layout(Axes(replicate=self.world_size), self.rank)

    def agree(self, values: Sequence[int]) -> list[int]:
        """Return the values."""
        return list(values)

    def add(self, tensor: Tensor) -> None:
        """Leave the tensor as it is."""

    def share(self, key: str, text: str | None) -> str:
        """Return the text."""
        assert text is not None
        return text

    def close(self) -> None:
        """Nothing to leave."""


class Gang:
    """One of several ranks, joined in torch's default process group."""

    def __init__(self, layout: Layout, store: Store, device: torch.device) -> None:
        self.layout = layout
        self.rank = rank = layout.rank
        self.world_size = world_size = math.prod(layout.axes)
        self._store = store
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=_TIMEOUT)

    def agree(self, values: Sequence[int]) -> list[int]:
        """Return the sums of int64 values over all ranks, on the host."""
        tensor = torch.tensor(values, dtype=torch.int64)
        dist.all_reduce(tensor)
        summed: list[int] = tensor.tolist()
        return summed

    def add(self, tensor: Tensor) -> None:
        """Replace a tensor by its sum over all ranks."""
        dist.all_reduce(tensor)

    def share(self, key: str, text: str | None) -> str:
        """Return the text that rank 0 gives; the others wait for it."""
        if self.rank == 0:
            assert text is not None
            self._store.set(f"marin/{key}", text)
            return text
        heard: bytes = self._store.get(f"marin/{key}")
        return heard.decode()

    def close(self) -> None:
        """Wait for the others, then leave the process group. Never call it after a failure: it would hang."""
        dist.barrier()
        dist.destroy_process_group()


@dataclass(frozen=True)
class OpenRendezvous:
    """A TCPStore that rank 0 holds open."""

    address: str
    store: TCPStore


def open_rendezvous() -> OpenRendezvous:
    """Open a meeting point on a free port of every interface; it closes with the last reference.

    Its address names no host: whoever placed the ranks knows under which address the others reach this machine.
    """
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=_TIMEOUT)
    return OpenRendezvous(f":{store.port}", store)


def host_rendezvous(address: str) -> OpenRendezvous:
    """Open a meeting point at a given `host:port` of this machine."""
    host, _, port = address.rpartition(":")
    store = TCPStore(host, int(port), is_master=True, wait_for_workers=False, timeout=_TIMEOUT)
    return OpenRendezvous(address, store)


def device_of(member: Member) -> torch.device:
    """Return the device on which this rank trains: its own GPU, or the CPU."""
    return torch.device("cuda", member.local_rank) if torch.cuda.is_available() else torch.device("cpu")


def memory_of(device: torch.device) -> int:
    """Return the bytes of memory that a device has; the CPU's is the machine's."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return int(psutil.virtual_memory().total)


def join(member: Member, device: torch.device, parallel: Parallel) -> Ranks:
    """Meet the other ranks; stale peers of an earlier generation stay outside. One rank meets nobody.

    Raises ConfigurationError before that if the ranks cannot be laid out as `parallel` says.
    """
    layout = Layout(parallel.axes(member.world_size), member.rank)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if member.world_size == 1:
        return Alone()
    if isinstance(member.hosted, OpenRendezvous):
        store = member.hosted.store
    else:
        host, _, port = member.rendezvous.rpartition(":")
        try:
            store = TCPStore(host, int(port), is_master=False, timeout=_TIMEOUT)
        except (dist.DistError, ValueError) as error:
            raise ClusterError(
                f"rank {member.rank} of {member.world_size} cannot reach the meeting point: {error}",
                where=member.rendezvous,
                hint="check that rank 0 runs and that the network lets its port through",
            ) from error
    prefixed = PrefixStore(f"generation-{member.generation}", store)
    return Gang(layout, prefixed, device)
