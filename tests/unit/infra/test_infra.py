"""The recipes in infra/ agree with constraints.txt and keep the settings that a cluster dies without."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[3]
CONTAINERFILE = (ROOT / "infra/container/Containerfile").read_text()
CLUSTER: dict[str, Any] = yaml.safe_load((ROOT / "infra/kuberay/raycluster.yaml").read_text())
PINS = dict(re.findall(r"^ *([a-z0-9-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
HEAD = CLUSTER["spec"]["headGroupSpec"]
WORKERS = {group["groupName"]: group for group in CLUSTER["spec"]["workerGroupSpecs"]}
GROUPS = {"head": HEAD, **WORKERS}


def container(group: dict[str, Any]) -> dict[str, Any]:
    (only,) = group["template"]["spec"]["containers"]
    return dict(only)


def test_raycluster_is_of_the_served_kind() -> None:
    assert (CLUSTER["apiVersion"], CLUSTER["kind"]) == ("ray.io/v1", "RayCluster")


def test_raycluster_version_is_the_pinned_ray() -> None:
    assert CLUSTER["spec"]["rayVersion"] == PINS["ray"]


def test_head_runs_no_step() -> None:
    assert HEAD["rayStartParams"]["num-cpus"] == "0"
    assert "nvidia.com/gpu" not in container(HEAD)["resources"]["limits"]


def test_ports_are_guarded_by_tokens() -> None:
    assert CLUSTER["spec"]["authOptions"]["mode"] == "token"


def test_every_ray_start_parameter_is_text() -> None:
    values = [value for group in GROUPS.values() for value in group["rayStartParams"].values()]
    assert all(isinstance(value, str) for value in values)


def test_every_pod_runs_one_image() -> None:
    assert len({container(group)["image"] for group in GROUPS.values()}) == 1


@pytest.mark.parametrize("name", GROUPS)
def test_pod_has_shared_memory_within_its_limit(name: str) -> None:
    (volume,) = GROUPS[name]["template"]["spec"]["volumes"]
    assert volume["emptyDir"]["medium"] == "Memory"
    assert {"name": volume["name"], "mountPath": "/dev/shm"} in container(GROUPS[name])["volumeMounts"]
    limit = container(GROUPS[name])["resources"]["limits"]["memory"]
    assert gibibytes(volume["emptyDir"]["sizeLimit"]) < gibibytes(limit)


def gibibytes(quantity: str) -> int:
    return int(quantity.removesuffix("Gi"))


def test_worker_groups_ask_for_gpus_only_where_named_so() -> None:
    gpus = {name: container(group)["resources"]["limits"].get("nvidia.com/gpu") for name, group in WORKERS.items()}
    assert gpus == {"cpu": None, "gpu": "8"}


def test_image_installs_the_constraints_and_runs_as_an_ordinary_user() -> None:
    assert re.search(r"^FROM python:3\.\d+-slim$", CONTAINERFILE, re.MULTILINE)
    assert "-c constraints.txt" in CONTAINERFILE
    assert re.findall(r"^USER (\S+)$", CONTAINERFILE, re.MULTILINE)[-1] == "marin"


def test_image_copies_only_what_exists() -> None:
    lines = re.findall(r"^COPY (.+)$", CONTAINERFILE, re.MULTILINE)
    sources = [source for line in lines for source in line.split()[:-1]]
    assert [source for source in sources if not (ROOT / source).exists()] == []
