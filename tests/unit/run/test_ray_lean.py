"""What a private cluster leaves out, and that Ray is as it was afterwards, whatever Ray it is."""

import pytest
from ray._private import node, parameter

from marin.run.backends.ray_lean import lean


def test_lean_with_the_pinned_ray_hands_its_node_less_and_the_variables():
    with lean({"A": "1"}) as is_lean:
        made = parameter.RayParams(include_log_monitor=True, no_monitor=False)
    assert is_lean
    assert (made.include_log_monitor, made.no_monitor, made.env_vars) == (False, True, {"A": "1"})


def test_lean_after_its_block_leaves_ray_as_it_was():
    before = (parameter.RayParams, node.Node)
    with lean({}):
        assert (parameter.RayParams, node.Node) != before
    assert (parameter.RayParams, node.Node) == before
    with pytest.raises(OSError, match="no port"), lean({}):
        raise OSError("no port is free")
    assert (parameter.RayParams, node.Node) == before


def test_lean_with_a_ray_that_has_other_parameters_changes_nothing(monkeypatch):
    class Newer:
        def __init__(self, without_monitor: bool = False) -> None:
            self.without_monitor = without_monitor

    monkeypatch.setattr(parameter, "RayParams", Newer)
    before = (parameter.RayParams, node.Node)
    with lean({}) as is_lean:
        assert not is_lean
        assert (parameter.RayParams, node.Node) == before
