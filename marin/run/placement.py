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
            return Demand({"CPU": 0}, (rank_bundle(resources),) * resources.num_ranks)
        case "map":
            return Demand({"CPU": min(1.0, resources.cpus)}, (shard_bundle(resources),))
        case _:
            return Demand(shard_bundle(resources), ())


def shard_bundle(resources: Resources) -> dict[str, float]:
    """Return what one shard of a map, or a plain step, asks for."""
    return _bundle(resources, gpus=resources.gpus)


def rank_bundle(resources: Resources) -> dict[str, float]:
    """Return what one rank asks for: its CPUs, and one GPU if the gang has any."""
    return _bundle(resources, gpus=1 if resources.gpus else 0)


def _bundle(resources: Resources, *, gpus: int) -> dict[str, float]:
    wanted = {"CPU": float(resources.cpus), "GPU": float(gpus), "memory": float(resources.memory_bytes or 0)}
    return {name: amount for name, amount in wanted.items() if amount}


def check_fits(name: str, demand: Demand, nodes: Sequence[Bundle]) -> None:
    """Raise ClusterError, naming what each node has, if the demand can never be met."""
    bundles = demand.bundles or (demand.attempt,)
    left = [dict(node) for node in nodes]
    for bundle in bundles:
        room = next((node for node in left if all(node.get(key, 0) >= need for key, need in bundle.items())), None)
        if room is None:
            asked = describe(bundle) if len(bundles) == 1 else f"{len(bundles)} ranks of {describe(bundle)} each"
            raise ClusterError(
                f"step {name} asks for {asked}; the cluster can never give that: it has {_inventory(nodes)}",
                where=f"step {name}",
                hint="lower .on(cpus=, gpus=, memory=, ranks=), or use a larger cluster with --address",
            )
        for key, need in bundle.items():
            room[key] -= need


def describe(bundle: Bundle) -> str:
    """Return a bundle in words: `2 CPUs, 1 GPU`."""
    words = []
    for key, plural in (("CPU", "CPUs"), ("GPU", "GPUs")):
        if amount := bundle.get(key, 0):
            words.append(f"{amount:g} {plural if amount != 1 else key}")
    if memory := bundle.get("memory", 0):
        words.append(f"{format_size(memory)} of memory")
    return ", ".join(words) or "nothing"


def _inventory(nodes: Sequence[Bundle]) -> str:
    shown = [describe({key: node.get(key, 0) for key in ("CPU", "GPU", "memory")}) for node in nodes[:4]]
    more = f" and {len(nodes) - 4} more" if len(nodes) > 4 else ""
    return f"{len(nodes)} node{'s' if len(nodes) != 1 else ''} ({'; '.join(shown)}{more})"
