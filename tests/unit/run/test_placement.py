"""What steps ask of a cluster, and what can never be given."""

import pytest

from marin.base.errors import ClusterError, ConfigurationError
from marin.graph.artifact import Folder
from marin.graph.context import Context
from marin.graph.recipe import recipe_of
from marin.graph.resources import Resources
from marin.graph.step import Step
from marin.run.placement import check_fits, demand_of, gang_demand, kind_of, waiting_words


class Plain(Step[Folder]):
    def run(self, ctx: Context) -> Folder:
        return Folder.write(ctx.output)


class Maps(Step[Folder]):
    def run(self, ctx: Context) -> Folder:
        ctx.map(len, ())
        return Folder.write(ctx.output)


class Gangs(Step[Folder]):
    def run(self, ctx: Context) -> Folder:
        def inner() -> None:
            ctx.gang(len, rendezvous=len)

        inner()
        return Folder.write(ctx.output)


def test_kind_follows_what_run_calls():
    assert [kind_of(step) for step in (Plain(), Maps(), Gangs())] == ["plain", "map", "gang"]


def test_demand_plain_step_takes_all_itself():
    demand = demand_of(Plain().on(cpus=4, gpus=2, memory="8 GB"))
    assert (demand.attempt, demand.bundles) == ({"CPU": 4, "GPU": 2, "memory": 8e9}, ())


def test_demand_coordinator_holds_no_gpu_and_no_memory():
    gang = demand_of(Gangs().on(cpus=3, gpus=2, nodes=2, memory="1 GB"))
    assert gang.attempt == {"CPU": 0}
    assert gang.bundles == ({"CPU": 6, "GPU": 2, "memory": 2e9},) * 2
    assert gang.apart
    assert demand_of(Maps().on(cpus=3, memory="1 GB")).attempt == {"CPU": 1}


def test_check_fits_impossible_request_names_what_the_cluster_has():
    nodes = [{"CPU": 8.0, "memory": 16e9}, {"CPU": 8.0, "GPU": 2.0}]
    with pytest.raises(ClusterError) as raised:
        check_fits("tiny", demand_of(Gangs().on(gpus=4)), nodes)
    assert "4 ranks of 1 CPU, 1 GPU each on one node" in raised.value.what
    assert "2 nodes (8 CPUs, 16.0 GB of memory; 8 CPUs, 2 GPUs)" in raised.value.what
    with pytest.raises(ClusterError, match="9 CPUs"):
        check_fits("wide", demand_of(Plain().on(cpus=9)), nodes)


def test_check_fits_bundles_are_spread_over_nodes():
    nodes = [{"CPU": 2.0}, {"CPU": 2.0}]
    check_fits("gang", demand_of(Gangs().on(ranks=4)), nodes)
    with pytest.raises(ClusterError):
        check_fits("gang", demand_of(Gangs().on(ranks=5)), nodes)
    with pytest.raises(ClusterError):
        check_fits("gang", demand_of(Gangs().on(ranks=2, cpus=1.5, nodes=1).on(ranks=3)), nodes)


def test_check_fits_nodes_of_a_gang_are_distinct():
    nodes = [{"CPU": 64.0, "GPU": 16.0}, {"CPU": 64.0, "GPU": 8.0}]
    check_fits("gang", demand_of(Gangs().on(gpus=8, nodes=2)), nodes)
    with pytest.raises(ClusterError) as raised:
        check_fits("gang", demand_of(Gangs().on(gpus=8, nodes=3)), nodes)
    assert "3 nodes with 8 ranks of 1 CPU, 1 GPU each; the cluster can never give that" in raised.value.what
    with pytest.raises(ClusterError, match="16 ranks of 1 CPU, 1 GPU each on one node"):
        check_fits("gang", demand_of(Gangs().on(gpus=16)), [nodes[1], nodes[1]])


def test_check_fits_elastic_gang_needs_its_least_nodes_only():
    nodes = [{"CPU": 2.0}, {"CPU": 2.0}]
    check_fits("gang", demand_of(Gangs().on(nodes=4, min_nodes=2)), nodes)
    with pytest.raises(ClusterError, match="3 nodes with 1 rank of 1 CPU;"):
        check_fits("gang", demand_of(Gangs().on(nodes=4, min_nodes=3)), nodes)


def test_waiting_words_say_what_is_free_of_how_much():
    gang = gang_demand(Resources(gpus=8, cpus=1), 1)
    assert waiting_words(gang, {"CPU": 64, "GPU": 4}, {"CPU": 64, "GPU": 16}) == (
        "waiting for 8 ranks of 1 CPU, 1 GPU each on one node: cluster has 4 of 16 GPUs free"
    )
    spread = gang_demand(Resources(nodes=2, memory_bytes=10**9), 2)
    assert waiting_words(spread, {"CPU": 64, "memory": 1.5e9}, {"CPU": 64, "memory": 4e9}).endswith(
        "cluster has 1.5 GB of 4.0 GB of memory free"
    )
    assert "but not on that many nodes at once" in waiting_words(spread, {"CPU": 64, "memory": 4e9}, {})


@pytest.mark.parametrize(
    ("placed", "expected"),
    [
        ({}, (1, 1)),
        ({"ranks": 4}, (4, 4)),
        ({"gpus": 8, "nodes": 2}, (8, 16)),
        ({"nodes": 3}, (1, 3)),
        ({"ranks": 4, "nodes": 2}, (2, 4)),
    ],
)
def test_resources_ranks_follow_from_devices_or_nodes(placed, expected):
    resources = Resources(**placed)
    assert (resources.ranks_per_node, resources.num_ranks) == expected


@pytest.mark.parametrize("placed", [{"ranks": 3, "nodes": 2}, {"nodes": 2, "min_nodes": 3}])
def test_resources_width_that_cannot_be_is_refused(placed):
    with pytest.raises(ConfigurationError):
        Plain().on(**placed)


def test_min_nodes_is_placement_never_identity():
    assert Gangs().on(nodes=4, min_nodes=2, shrink_after=5).placed.resources.least_nodes == 2
    wide, narrow = (recipe_of(step, lambda parent: "", (), {}) for step in (Gangs().on(nodes=4, min_nodes=2), Gangs()))
    assert wide.fingerprint == narrow.fingerprint
