"""What a step asks of the cluster, and whether the cluster could ever give it: pure.

A step whose `run` calls `ctx.map` or `ctx.gang` coordinates: its own process takes little, and its shards or ranks
ask for what `.on(...)` says, each. Any other step takes all of it itself.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any, Literal

from marin.base.errors import ClusterError
from marin.base.units import format_size
from marin.graph.resources import Resources
from marin.graph.step import Step

Kind = Literal["plain", "map", "gang"]
Bundle = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Demand:
    """Ray resources of the attempt itself, and the bundles that it will ask for beside."""

    attempt: Bundle
    bundles: tuple[Bundle, ...]
    asked: str = ""
    """The bundles in words: `2 nodes with 8 GPUs each`."""
    apart: bool = False
    """Whether each bundle needs a node of its own."""


def kind_of(step: Step[Any]) -> Kind:
    """Return whether `run` mentions `ctx.gang`, else `ctx.map`, else neither."""
    names = set(_names(type(step).run.__code__))
    return "gang" if "gang" in names else "map" if "map" in names else "plain"


def _names(code: CodeType) -> Iterable[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def demand_of(step: Step[Any]) -> Demand:
    """Return what the step asks for.

    A coordinator of a map takes one CPU, which Ray lends to others while it waits, one of a gang takes none. Neither
    holds memory or GPUs, which Ray would not lend.
    """
    resources = step.placed.resources
    match kind_of(step):
        case "gang":
            return gang_demand(resources, resources.least_nodes)
        case "map":
            return Demand({"CPU": min(1.0, resources.cpus)}, (shard_bundle(resources),))
        case _:
            return Demand(shard_bundle(resources), ())


def shard_bundle(resources: Resources) -> dict[str, float]:
    """Return what one shard of a map, or a plain step, asks for."""
    return _bundle(resources, gpus=resources.gpus)


def gang_demand(resources: Resources, nodes: int) -> Demand:
    """Return what a gang asks for on so many nodes.

    With devices, or over several nodes, it is one bundle a node that holds all of the node's ranks. Ranks on CPUs of
    no said nodes are bundles of their own: together where there is room, otherwise not.
    """
    per_node = resources.ranks_per_node
    rank = _bundle(resources, gpus=1 if resources.gpus else 0)
    if resources.nodes == 1 and not resources.gpus:
        asked = describe(rank) if per_node == 1 else f"{per_node} ranks of {describe(rank)} each"
        return Demand({"CPU": 0}, (rank,) * per_node, asked)
    node = {key: amount * per_node for key, amount in rank.items()}
    ranks = f"{per_node} rank{'s' if per_node > 1 else ''} of {describe(rank)}{' each' if per_node > 1 else ''}"
    asked = f"{ranks} on one node" if nodes == 1 else f"{nodes} nodes with {ranks}"
    return Demand({"CPU": 0}, (node,) * nodes, asked, apart=True)


def _bundle(resources: Resources, *, gpus: int) -> dict[str, float]:
    wanted = {"CPU": float(resources.cpus), "GPU": float(gpus), "memory": float(resources.memory_bytes or 0)}
    return {name: amount for name, amount in wanted.items() if amount}


def check_fits(name: str, demand: Demand, nodes: Sequence[Bundle]) -> None:
    """Raise ClusterError, naming what each node has, if the demand can never be met."""
    left = [dict(node) for node in nodes]
    for bundle in demand.bundles or (demand.attempt,):
        room = next((node for node in left if all(node.get(key, 0) >= need for key, need in bundle.items())), None)
        if room is None:
            asked = demand.asked or describe(bundle)
            raise ClusterError(
                f"step {name} asks for {asked}; the cluster can never give that: it has {inventory(nodes)}",
                where=f"step {name}",
                hint="lower .on(cpus=, gpus=, memory=, ranks=, nodes=), or use a larger cluster with --address",
            )
        if demand.apart:
            left = [node for node in left if node is not room]
        for key, need in bundle.items():
            room[key] -= need


def waiting_words(demand: Demand, free: Bundle, total: Bundle) -> str:
    """Return why bundles are not placed yet: `waiting for 8 GPUs ...: cluster has 4 of 16 GPUs free`."""
    wanted = {key: sum(bundle.get(key, 0) for bundle in demand.bundles) for key in ("CPU", "GPU", "memory")}
    short = [key for key, need in wanted.items() if free.get(key, 0) < need]
    if not short:
        where = "not on that many nodes at once" if demand.apart else "not where whole ranks fit"
        return f"waiting for {demand.asked}: that much is free, but {where}"
    shown = ", ".join(f"{_amount(key, free)} of {describe({key: total.get(key, 0)})}" for key in short)
    return f"waiting for {demand.asked}: cluster has {shown} free"


def _amount(key: str, bundle: Bundle) -> str:
    return format_size(int(bundle.get(key, 0))) if key == "memory" else f"{bundle.get(key, 0):g}"


def describe(bundle: Bundle) -> str:
    """Return a bundle in words: `2 CPUs, 1 GPU`."""
    words = []
    for key, plural in (("CPU", "CPUs"), ("GPU", "GPUs")):
        if amount := bundle.get(key, 0):
            words.append(f"{amount:g} {plural if amount != 1 else key}")
    if memory := bundle.get("memory", 0):
        words.append(f"{format_size(memory)} of memory")
    return ", ".join(words) or "nothing"


def inventory(nodes: Sequence[Bundle]) -> str:
    """Return what nodes have, in words: `2 nodes (4 CPUs; 4 CPUs, 1 GPU)`."""
    shown = [describe({key: node.get(key, 0) for key in ("CPU", "GPU", "memory")}) for node in nodes[:4]]
    more = f" and {len(nodes) - 4} more" if len(nodes) > 4 else ""
    return f"{len(nodes)} node{'s' if len(nodes) != 1 else ''} ({'; '.join(shown)}{more})"
