"""The Kubernetes manifests: fields that KubeRay knows, and the settings that a cluster dies without.

Kubernetes drops a field it does not know without a word; so the names that are allowed stand here, from KubeRay's and
Kubernetes' own type definitions (ray.io/v1, core/v1).
"""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[3]
CLUSTER: dict[str, Any] = yaml.safe_load((ROOT / "infra/kuberay/raycluster.yaml").read_text())
JOB: dict[str, Any] = yaml.safe_load((ROOT / "infra/kuberay/rayjob.yaml").read_text())
CLASSES = list(yaml.safe_load_all((ROOT / "infra/kuberay/priority.yaml").read_text()))
PINS = dict(re.findall(r"^ *([a-z0-9-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
HEAD = CLUSTER["spec"]["headGroupSpec"]
WORKERS = {group["groupName"]: group for group in CLUSTER["spec"]["workerGroupSpecs"]}
GROUPS = {"head": HEAD, **WORKERS}

KNOWN = {
    "cluster": {"rayVersion", "authOptions", "enableInTreeAutoscaling", "autoscalerOptions", "headGroupSpec"}
    | {"workerGroupSpecs", "suspend", "headServiceAnnotations", "gcsFaultToleranceOptions"},
    "job": {"entrypoint", "submissionMode", "backoffLimit", "activeDeadlineSeconds", "shutdownAfterJobFinishes"}
    | {"ttlSecondsAfterFinished", "rayClusterSpec", "runtimeEnvYAML", "metadata", "submitterConfig", "jobId"},
    "group": {"groupName", "replicas", "minReplicas", "maxReplicas", "numOfHosts", "rayStartParams", "template"},
    "pod": {"containers", "volumes", "affinity", "tolerations", "nodeSelector", "priorityClassName"}
    | {"serviceAccountName", "terminationGracePeriodSeconds", "securityContext"},
    "container": {"name", "image", "ports", "env", "resources", "lifecycle", "securityContext", "volumeMounts"},
}


def pod(group: dict[str, Any]) -> dict[str, Any]:
    return dict(group["template"]["spec"])


def container(group: dict[str, Any]) -> dict[str, Any]:
    (only,) = pod(group)["containers"]
    return dict(only)


def test_manifests_are_of_the_served_kinds() -> None:
    kinds = [(each["apiVersion"], each["kind"]) for each in (CLUSTER, JOB, *CLASSES)]
    priority = ("scheduling.k8s.io/v1", "PriorityClass")
    assert kinds == [("ray.io/v1", "RayCluster"), ("ray.io/v1", "RayJob"), priority, priority]


def test_manifests_have_only_fields_that_are_known() -> None:
    assert set(CLUSTER["spec"]) <= KNOWN["cluster"]
    assert set(JOB["spec"]) <= KNOWN["job"]
    for group in GROUPS.values():
        assert set(group) <= KNOWN["group"]
        assert set(pod(group)) <= KNOWN["pod"]
        assert set(container(group)) <= KNOWN["container"]


def test_job_has_the_cluster_of_raycluster_yaml() -> None:
    assert JOB["spec"]["rayClusterSpec"] == CLUSTER["spec"]


def test_job_runs_what_the_image_has_ends_in_time_and_takes_its_cluster_away() -> None:
    spec = JOB["spec"]
    program, verb, target, *_ = spec["entrypoint"].split()
    assert (program, verb, (ROOT / target).exists()) == ("marin", "run", True)
    assert (spec["submissionMode"], spec["shutdownAfterJobFinishes"]) == ("K8sJobMode", True)
    assert spec["activeDeadlineSeconds"] > 0


def test_version_is_the_pinned_ray() -> None:
    assert CLUSTER["spec"]["rayVersion"] == PINS["ray"]


def test_head_runs_no_step_and_is_not_moved() -> None:
    assert (HEAD["rayStartParams"]["num-cpus"], HEAD["rayStartParams"]["num-gpus"]) == ("0", "0")
    assert "nvidia.com/gpu" not in container(HEAD)["resources"]["limits"]
    notes = HEAD["template"]["metadata"]["annotations"]
    assert notes["cluster-autoscaler.kubernetes.io/safe-to-evict"] == "false"


def test_priority_classes_exist_and_workers_give_way_first() -> None:
    values = {each["metadata"]["name"]: each["value"] for each in CLASSES}
    named = {name: values[pod(group)["priorityClassName"]] for name, group in GROUPS.items()}
    assert named["head"] > max(named[name] for name in WORKERS)


def test_ports_are_guarded_by_tokens_and_open_to_clients() -> None:
    assert CLUSTER["spec"]["authOptions"] == {"mode": "token"}
    assert {each["name"]: each["containerPort"] for each in container(HEAD)["ports"]} == {
        "gcs": 6379,
        "dashboard": 8265,
        "client": 10001,
    }


def test_every_ray_start_parameter_is_text() -> None:
    values = [value for group in GROUPS.values() for value in group["rayStartParams"].values()]
    assert all(isinstance(value, str) for value in values)


def test_every_pod_runs_one_image_as_an_ordinary_user() -> None:
    assert len({container(group)["image"] for group in GROUPS.values()}) == 1
    contexts = [container(group)["securityContext"] for group in GROUPS.values()]
    assert all(each["runAsNonRoot"] and not each["allowPrivilegeEscalation"] for each in contexts)


@pytest.mark.parametrize("name", GROUPS)
def test_pod_has_shared_memory_within_its_limit(name: str) -> None:
    (volume,) = pod(GROUPS[name])["volumes"]
    assert volume["emptyDir"]["medium"] == "Memory"
    assert {"name": volume["name"], "mountPath": "/dev/shm"} in container(GROUPS[name])["volumeMounts"]
    limit = container(GROUPS[name])["resources"]["limits"]["memory"]
    store = int(GROUPS[name]["rayStartParams"]["object-store-memory"])
    assert store < gibibytes(volume["emptyDir"]["sizeLimit"]) << 30
    assert gibibytes(volume["emptyDir"]["sizeLimit"]) < gibibytes(limit)


def gibibytes(quantity: str) -> int:
    return int(quantity.removesuffix("Gi"))


@pytest.mark.parametrize("name", GROUPS)
def test_pod_asks_for_what_it_may_have(name: str) -> None:
    """Requests below limits let the node take memory back from a rank."""
    resources = container(GROUPS[name])["resources"]
    assert resources["requests"] == resources["limits"]


def test_worker_groups_ask_for_gpus_only_where_named_so() -> None:
    gpus = {name: container(group)["resources"]["limits"].get("nvidia.com/gpu") for name, group in WORKERS.items()}
    assert gpus == {"cpu": None, "gpu": "8"}


@pytest.mark.parametrize("name", WORKERS)
def test_worker_that_goes_leaves_in_order_within_its_grace(name: str) -> None:
    program, script, option, seconds = container(WORKERS[name])["lifecycle"]["preStop"]["exec"]["command"]
    assert (program, option) == ("python", "--seconds")
    assert (ROOT / Path(script).relative_to("/opt/marin")).exists()
    env = {each["name"]: each["value"] for each in container(WORKERS[name])["env"]}
    drain = float(env["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"])
    assert float(seconds) + drain < pod(WORKERS[name])["terminationGracePeriodSeconds"]
