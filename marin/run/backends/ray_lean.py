"""A private cluster with less beside it: what `ray.init` starts on this machine and no run of marin uses is left out.

Ray starts ten processes for one machine, of which a Python process each for the autoscaler, for the dashboard that was
not asked for, and for bringing workers' prints to the driver. Beside that, a task that brings variables of its own
waits for an agent and for a worker of its own, while workers that get their variables from their raylet are ready.
Together some 2 s of 8 s of processor time and 1.2 s of waiting for each run (two cores, Ray 2.60). `ray.init` cannot be
told so, but Ray's own node and its parameters can. Invariant: where those are not as they are known here, as another
version of Ray may have them, the cluster starts with all of it and works as well.
"""

import contextlib
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

# Any: Ray's private classes; it may move them
try:
    from ray._private import node as _node
    from ray._private import parameter as _parameter
except ImportError:
    node: Any = None
    parameter: Any = None
else:
    node, parameter = _node, _parameter

LEFT_OUT = {"no_monitor": True, "include_log_monitor": False}
VARIABLES = "env_vars"
API_SERVER = "start_api_server"


def can_be_lean() -> bool:
    """Whether this Ray's node and parameters are as they are known here."""
    params, head = getattr(parameter, "RayParams", None), getattr(node, "Node", None)
    if params is None or head is None:
        return False
    return {*LEFT_OUT, VARIABLES} <= set(inspect.signature(params).parameters) and hasattr(head, API_SERVER)


@contextlib.contextmanager
def lean(variables: Mapping[str, str]) -> Iterator[bool]:
    """Have `ray.init` start less meanwhile, and all its workers with these variables; gives whether it will."""
    if not can_be_lean():
        yield False
        return
    usual_params, usual_node = parameter.RayParams, node.Node

    def make_params(*args: Any, **options: Any) -> Any:
        return usual_params(*args, **{**options, **LEFT_OUT, VARIABLES: dict(variables)})

    parameter.RayParams = make_params
    node.Node = type("Head", (usual_node,), {API_SERVER: lambda *args, **options: None})
    try:
        yield True
    finally:
        parameter.RayParams, node.Node = usual_params, usual_node
