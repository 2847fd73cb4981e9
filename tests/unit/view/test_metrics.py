"""Points of a run: from real events, with gangs, restarts, and numbers that are none."""

import math
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from marin.store import EventWriter
from marin.view.metrics import MetricReader, Point, standing_points


def told(store: Path, *events: dict[str, object]) -> list[Point]:
    """Return the points of a run whose worker told these metrics."""
    writer = EventWriter(str(store), "run-1", "worker")
    for event in events:
        writer.emit("metric", **{"name": "train", "attempt": "a1", **event})
    writer.emit("progress", name="train", done=1, total=2, unit="steps")
    writer.close()
    return MetricReader(str(store), "run-1", warn=print).poll()


def test_points_have_their_step_or_the_latest_before(tmp_path: Path) -> None:
    points = told(
        tmp_path,
        {"values": {"early": 1}},
        {"values": {"step": 10, "loss": 2.5, "tokens": 640}},
        {"values": {"loss": 2.0}},
        {"name": "other", "values": {"score": 0.5}},
    )
    assert [(point.name, point.at, dict(point.values)) for point in points] == [
        ("train", 0, {"early": 1}),
        ("train", 10, {"loss": 2.5, "tokens": 640}),
        ("train", 10, {"loss": 2.0}),
        ("other", 0, {"score": 0.5}),
    ]


def test_points_of_a_gang_are_those_of_rank_0_and_a_diverged_loss_is_kept(tmp_path: Path) -> None:
    points = told(
        tmp_path,
        {"rank": 0, "values": {"step": 1, "loss": math.nan, "grad_norm": math.inf}},
        {"rank": 1, "values": {"step": 1, "loss": 9.0}},
        {"rank": 0, "values": {"step": 2, "note": "no number"}},
    )
    (point,) = points
    assert math.isnan(point.values["loss"])
    assert point.to_json()["values"] == {"loss": "nan", "grad_norm": "inf"}


def at(step: int) -> Point:
    return Point("train", "a1", "", step, {"loss": 1.0})


def test_points_that_a_restart_overtook_are_left_out() -> None:
    first, again = [at(10), at(20), at(30)], [at(20), at(30), at(40)]
    assert standing_points([*first, *again]) == [at(10), at(20), *again]


@given(st.lists(st.integers(0, 30), max_size=40))
def test_points_left_standing_never_go_back_and_keep_the_last_of_each_step(steps: list[int]) -> None:
    left = [point.at for point in standing_points([at(step) for step in steps])]
    assert left == sorted(left)
    assert left[-1:] == steps[-1:]
    assert standing_points([at(step) for step in left]) == [at(step) for step in left]
