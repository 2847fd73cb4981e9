"""Asking every node of a Ray cluster before the first step is sent there, and whether the cluster can grow.

Each alive node gets one small task that takes no CPU and is pinned to it; all are asked at once. None is waited for
longer than `ANSWER_SECONDS`, or twice as long as the first took: where all are slow (code that is sent, a cold disk),
none is silent. The worker that answers stays for the attempts that follow. Only plain JSON crosses, so that a node
with another marin can still answer.
"""

import dataclasses
import json
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ray
from ray import exceptions
from ray.experimental.internal_kv import _internal_kv_get
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from marin import fs
from marin.run import machine
from marin.run.preflight import Facts, Needs, Node

ANSWER_SECONDS = 20.0
FIRST_SECONDS = 120.0
DELETERS = 16
AUTOSCALER_SECONDS = 10.0
AUTOSCALER_STATUS = "__autoscaling_status"
AUTOSCALER_V2 = ("__autoscaler_v2_enabled", "__autoscaler")
NODE_WITHOUT_TYPE = re.compile(r"node_[0-9a-f]{56}")
"""How Ray's monitor names the type of each node where no autoscaler is on."""

RayNode = Mapping[str, Any]  # Any: JSON


def facts_there(wanted: Mapping[str, Any]) -> dict[str, Any]:  # Any: JSON
    """Body of the task on one node: gather its facts, answer the probe of the store."""
    found = dataclasses.asdict(machine.gather(wanted["modules"]))
    clock = time.time()
    store = machine.answer(wanted["question"], wanted["text"], wanted["reply"])
    return {**found, "store": store, "clock": clock}


def alive_nodes() -> list[RayNode]:
    """Return the nodes that Ray believes to be alive."""
    nodes: list[RayNode] = ray.nodes()  # type: ignore[no-untyped-call]
    return [node for node in nodes if node["Alive"]]


def ask_nodes(needs: Needs, environment: Mapping[str, Any], *, seconds: float = ANSWER_SECONDS) -> list[Node]:
    """Return what every node answers within `seconds`, by name; one that is lost meanwhile is left out."""
    nodes = alive_nodes()
    question = fs.join(needs.store, f".probe-{fs.unique()}")
    text = f"asked of {len(nodes)} nodes"
    replies = [f"{question}-{node['NodeID'][:16]}" for node in nodes]
    wanted = {"modules": list(needs.modules), "question": question, "text": text}
    fs.replace(question, text.encode())
    try:
        tasks = [
            _task(node, environment, {**wanted, "reply": reply}) for node, reply in zip(nodes, replies, strict=True)
        ]
        answers = _collect(tasks, seconds)
        heard = fs.read_many(reply for reply, answer in zip(replies, answers, strict=True) if isinstance(answer, Facts))
    finally:
        with ThreadPoolExecutor(DELETERS) as pool:
            list(pool.map(fs.delete, [question, *replies]))
    lost = _lost_since(nodes) if any(isinstance(answer, str) for answer in answers) else frozenset()
    found = [
        _node(node, name, answer, seconds, came=heard.get(reply) == text.encode())
        for node, name, reply, answer in zip(nodes, _names(nodes), replies, answers, strict=True)
        if isinstance(answer, Facts) or node["NodeID"] not in lost
    ]
    return sorted(found, key=lambda node: node.name)


def _lost_since(nodes: Sequence[RayNode]) -> frozenset[str]:
    """Return the ids of those nodes that are no longer alive."""
    return frozenset(node["NodeID"] for node in nodes) - {node["NodeID"] for node in alive_nodes()}


def _task(node: RayNode, environment: Mapping[str, Any], wanted: Mapping[str, Any]) -> Any:  # Any: ray.ObjectRef
    pinned = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
    task = ray.remote(facts_there).options(
        name="preflight", num_cpus=0, max_retries=0, scheduling_strategy=pinned, runtime_env=dict(environment)
    )
    return task.remote(wanted)


def _collect(tasks: Sequence[Any], seconds: float) -> list[Facts | str | None]:
    """Return by task its facts, why it has none, or None for one that has not answered in time."""
    asked, began = time.time(), time.monotonic()
    found: dict[Any, Facts | str] = {}
    waiting, ends = list(tasks), began + max(seconds, FIRST_SECONDS)
    while waiting and (left := ends - time.monotonic()) > 0:
        ready, waiting = ray.wait(waiting, timeout=left)
        if ready and not found:
            ends = began + max(seconds, 2 * (time.monotonic() - began))
        for task in ready:
            found[task] = _answer_of(task, asked)
    for task in waiting:
        ray.cancel(task, force=True)
    return [found.get(task) for task in tasks]


def _answer_of(task: Any, asked: float) -> Facts | str:  # Any: ray.ObjectRef
    try:
        record = ray.get(task)
    except exceptions.RayError as error:
        lines = [line for line in str(error).strip().splitlines() if line.strip()]
        return f"cannot run marin's workers: {(lines or [type(error).__name__])[-1].strip()}"
    # The answer was given between the two times if the clocks agree; what lies outside is surely skew.
    ahead, behind = record["clock"] - time.time(), asked - record["clock"]
    skew = ahead if ahead > 0 else -behind if behind > 0 else 0.0
    return Facts.from_json({**record, "skew_seconds": skew})


def _node(node: RayNode, name: str, answer: Facts | str | None, seconds: float, *, came: bool) -> Node:
    has: Mapping[str, float] = node["Resources"]
    if answer is None:
        return Node(name, has=has, problem=f"has not answered for {seconds:g} s, and was not checked", silent=True)
    if isinstance(answer, str):
        return Node(name, has=has, problem=answer)
    if not answer.store and not came:
        answer = dataclasses.replace(answer, store="writes to another store at that place: its answer is not here")
    return Node(name, answer, has)


def _names(nodes: Sequence[RayNode]) -> list[str]:
    """Return a name of each node that people know it by, with its id where several share one."""
    named = [
        node["NodeManagerHostname"]
        if node["NodeManagerHostname"] == node["NodeManagerAddress"]
        else f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})"
        for node in nodes
    ]
    counts = Counter(named)
    return [
        name if counts[name] == 1 else f"{name} {node['NodeID'][:8]}" for name, node in zip(named, nodes, strict=True)
    ]


def cluster_grows() -> bool:
    """Whether an autoscaler may add nodes to this cluster; False where none says so in time."""
    task = ray.remote(grows_there).options(name="autoscaler?", num_cpus=0, max_retries=0).remote()
    try:
        return bool(ray.get(task, timeout=AUTOSCALER_SECONDS))
    except exceptions.RayError:  # it does not answer: then what is there now is all that counts
        return False


def grows_there() -> bool:
    """Body of a task: look for what an autoscaler leaves in Ray's head."""
    key, namespace = AUTOSCALER_V2
    if _internal_kv_get(key.encode(), namespace=namespace.encode()) == b"1":
        return True
    return is_autoscaled(_internal_kv_get(AUTOSCALER_STATUS.encode()))


def is_autoscaled(status: bytes | None) -> bool:
    """Whether a status names types of nodes: Ray's monitor writes one in any cluster, and knows types in some alone."""
    try:
        report = json.loads(status or b"{}").get("autoscaler_report") or {}
        nodes = [*(report.get("node_type_mapping") or {}).values(), *(report.get("active_nodes") or {})]
    except (ValueError, AttributeError):
        return False
    launching = bool(report.get("pending_nodes") or report.get("pending_launches"))
    return launching or any(not NODE_WITHOUT_TYPE.fullmatch(str(each)) for each in nodes)
