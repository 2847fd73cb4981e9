"""What steps ask of a cluster, and what can never be given."""

import pytest

from marin.base.errors import ClusterError
from marin.graph.artifact import Folder
from marin.graph.context import Context
from marin.graph.step import Step
from marin.run.placement import check_fits, demand_of, kind_of


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
    assert gang.bundles == ({"CPU": 3, "GPU": 1, "memory": 1e9},) * 4
    assert demand_of(Maps().on(cpus=3, memory="1 GB")).attempt == {"CPU": 1}


def test_check_fits_impossible_request_names_what_the_cluster_has():
    nodes = [{"CPU": 8.0, "memory": 16e9}, {"CPU": 8.0, "GPU": 2.0}]
    with pytest.raises(ClusterError) as raised:
        check_fits("tiny", demand_of(Gangs().on(gpus=4)), nodes)
    assert "4 ranks of 1 CPU, 1 GPU each" in raised.value.what
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
