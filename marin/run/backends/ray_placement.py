"""Room for a gang on a Ray cluster: placement groups by node, held between formings, given back by name.

Invariant: a gang holds all the room it runs on or none, so two gangs that both need everything never block each other.
Every group is named by its attempt: Ray keeps a group until its job ends, even if the worker that made it is dead.
"""

import itertools
from dataclasses import dataclass
from typing import Any

import ray
from ray import exceptions
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group

from marin.graph.resources import Resources
from marin.run.placement import Demand, gang_demand, waiting_words

MINIMUM = {"CPU": 0.001}
"""What stands for a bundle without resources, which Ray refuses."""


@dataclass(frozen=True, slots=True)
class Room:
    """The bundles of one group on one node."""

    group: PlacementGroup
    bundle: int
    """The first of them, into which the node's host goes."""
    node_id: str
    address: str
    num_ranks: int

    @property
    def node(self) -> str:
        """The node in words; the address alone would not do where several share one machine."""
        return f"{self.address} ({self.node_id[:8]})"


class Reservation:
    """The room of one gang: a group for all of its nodes, or one and another by which it has grown."""

    def __init__(self, attempt: str, resources: Resources) -> None:
        self._attempt = attempt
        self._resources = resources
        self._numbers = itertools.count(1)
        self._groups: list[tuple[PlacementGroup, int]] = []
        self._growth: tuple[PlacementGroup, int] | None = None

    @property
    def nodes(self) -> int:
        """On how many nodes room is held or asked for."""
        return sum(nodes for _, nodes in self._groups)

    def reserve(self, nodes: int, timeout: float) -> bool:
        """Hold room on exactly so many nodes, within `timeout` seconds."""
        if not self.adopt(nodes):
            self.release()
            self._groups = [(self._ask(gang_demand(self._resources, nodes)), nodes)]
        return all(group.wait(timeout_seconds=timeout) for group, _ in self._groups)

    def adopt(self, nodes: int) -> bool:
        """Whether what is asked for, perhaps with what has come beside, makes up so many nodes."""
        if self._growth is not None and self.nodes + self._growth[1] == nodes and is_created(self._growth[0]):
            self._groups.append(self._growth)
            self._growth = None
        return self.nodes == nodes

    def grow(self) -> bool:
        """Ask for the nodes that are missing, beside those that are held; return whether they are there by now."""
        missing = self._resources.nodes - self.nodes
        if missing <= 0:
            return False
        if self._growth is None:
            held = ",".join(room.node_id for room in self.rooms())
            demand = gang_demand(self._resources, missing)
            self._growth = (self._ask(demand, elsewhere={"ray.io/node-id": f"!in({held})"}), missing)
        return is_created(self._growth[0])

    def rooms(self) -> list[Room]:
        """Return the nodes on which room is held: sorted, so that ranks of one node are neighbours."""
        addresses = {node["NodeID"]: str(node["NodeManagerAddress"]) for node in _alive_nodes()}
        found = []
        for group, nodes in self._groups:
            places: dict[int, str] = placement_group_table(group)["bundles_to_node_id"]
            per_bundle = self._resources.ranks_per_node if gang_demand(self._resources, nodes).apart else 1
            for node_id in set(places.values()):
                bundles = sorted(index for index, place in places.items() if place == node_id)
                address = addresses.get(node_id, "a node that is gone")
                found.append(Room(group, bundles[0], node_id, address, len(bundles) * per_bundle))
        return sorted(found, key=lambda room: (room.address, room.node_id))

    def stop_growing(self) -> None:
        """Give back what was asked for beside."""
        if self._growth is not None:
            remove_placement_group(self._growth[0])
            self._growth = None

    def release(self) -> None:
        """Give all back. What runs there ends."""
        self.stop_growing()
        for group, _ in self._groups:
            remove_placement_group(group)
        self._groups.clear()

    def _ask(self, demand: Demand, elsewhere: dict[str, str] | None = None) -> PlacementGroup:
        bundles = [dict(bundle) or MINIMUM for bundle in demand.bundles]
        selectors = [elsewhere] * len(bundles) if elsewhere else None
        group: PlacementGroup = placement_group(
            bundles,
            strategy="STRICT_SPREAD" if demand.apart else "PACK",
            name=f"{self._attempt} {next(self._numbers)}",
            bundle_label_selector=selectors,
        )
        return group


def is_created(group: PlacementGroup) -> bool:
    """Whether all bundles of a group are placed now."""
    return bool(placement_group_table(group).get("state") == "CREATED")


def remove_groups(attempt: str) -> None:
    """Take back what a lost attempt had reserved."""
    for group in placement_group_table().values():
        if group["name"].startswith(f"{attempt} ") and group["state"] != "REMOVED":
            try:
                remove_placement_group(ray.util.get_placement_group(group["name"]))
            except (ValueError, exceptions.RayError):  # gone by itself meanwhile
                continue


def lack(resources: Resources) -> str:
    """Return why a gang has no room yet."""
    free: dict[str, float] = ray.available_resources()  # type: ignore[no-untyped-call]
    total: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    return waiting_words(gang_demand(resources, resources.nodes), free, total)


def most_nodes(resources: Resources) -> int:
    """Return how many nodes could hold their share of a gang, if they were free."""
    bundle = gang_demand(resources, 1).bundles[0]
    nodes = [node["Resources"] for node in _alive_nodes()]
    return sum(all(node.get(key, 0) >= need for key, need in bundle.items()) for node in nodes)


def is_alive(node_id: str) -> bool:
    """Whether Ray counts a node as alive."""
    return any(node["NodeID"] == node_id for node in _alive_nodes())


def _alive_nodes() -> list[dict[str, Any]]:  # Any: as Ray describes a node
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return [node for node in nodes if node["Alive"]]
