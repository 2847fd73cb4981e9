"""The page of a trajectory: every point in its place, and what cannot be drawn is said."""

import json
import re
from pathlib import Path

import pytest

import marin
from marin import Checkpoint, CompressionBaseline, Records, Scores, Step, Trajectory
from marin.base.errors import ConfigurationError, MarinError
from marin.evaluate.trajectory import Point, page, picture

POINTS = [
    Point(10, 1_000, {"loss": 4.0, "acc": 0.25}, {"acc": (0.2, 0.3)}),
    Point(20, 2_000, {"loss": 3.0, "acc": 0.5}, {"acc": (0.4, 0.6)}),
    Point(30, 3_000, {"loss": float("nan"), "acc": 0.75}, {}),
]


class Made(Step[Checkpoint]):
    """A checkpoint that says how far it is."""

    version = 1
    steps: int

    def run(self, ctx: marin.Context) -> Checkpoint:
        ctx.output.write("model.safetensors", b"x")
        return Checkpoint.write(ctx.output, meta={"steps": self.steps, "tokens": 10 * self.steps} if self.steps else {})


class Scored(Step[Scores]):
    """One number of a checkpoint."""

    version = 1
    checkpoint: Step[Checkpoint]
    value: float

    def run(self, ctx: marin.Context) -> Scores:
        return Scores.write(ctx.output, {"acc": self.value, "acc_stderr": 0.1})


def test_picture_has_every_point_at_its_tokens_and_value() -> None:
    drawn = picture(POINTS, "acc")
    (line,) = re.findall(r'<polyline class="curve" points="([^"]+)"', drawn)
    places = [tuple(map(float, place.split(","))) for place in line.split()]
    assert [x for x, _ in places] == pytest.approx([64, 384, 704])
    assert places[0][1] > places[1][1] > places[2][1]
    assert drawn.count('class="spread"') == 2
    assert "step 20, 2,000 tokens: 0.5" in drawn


def test_picture_leaves_out_what_is_no_number() -> None:
    assert picture(POINTS, "loss").count("<circle") == 2
    assert "No value is a number" in picture(POINTS[2:], "loss")


def test_page_is_one_file_with_escaped_words() -> None:
    points = [Point(1, 10, {"<b>": 1.0}, {})]
    text = page(points, ["<b>"])
    assert "<b>" not in text
    assert not re.search(r"(src|href)=", text)
    assert text.count("<svg") == 1


def test_trajectory_is_in_the_order_of_tokens_with_intervals(tmp_path: Path) -> None:
    scores = [Scored(checkpoint=Made(steps=steps), value=1 / steps) for steps in (4, 2)]
    folder = marin.run(Trajectory(scores=scores, metrics=["acc"]), store=tmp_path, backend="inline")
    record = json.loads(folder.read("trajectory.json"))
    assert [point["tokens"] for point in record["points"]] == [20, 40]
    assert record["points"][0]["intervals"]["acc"] == pytest.approx([0.5 - 0.196, 0.5 + 0.196])
    assert b"<svg" in folder.read("report.html")


def test_trajectory_of_a_metric_that_was_not_scored_names_those_that_were(tmp_path: Path) -> None:
    step = Trajectory(scores=[Scored(checkpoint=Made(steps=1), value=1.0)], metrics=["accc"])
    with pytest.raises(MarinError, match="no metric `accc`") as caught:
        marin.run(step, store=tmp_path, backend="inline")
    assert "`acc`" in caught.value.hint


def test_trajectory_of_a_model_that_was_not_trained_here_is_refused(tmp_path: Path) -> None:
    step = Trajectory(scores=[Scored(checkpoint=Made(steps=0), value=1.0)], metrics=["acc"])
    with pytest.raises(MarinError, match="does not say after how many tokens"):
        marin.run(step, store=tmp_path, backend="inline")


def test_trajectory_without_checkpoints_or_metrics_is_refused_at_once() -> None:
    with pytest.raises(ConfigurationError, match="1 steps of scores and 0 checkpoints"):
        Trajectory(scores=[CompressionBaseline(documents=Records(texts=["a"]))], metrics=["loss"])
    with pytest.raises(ConfigurationError, match="no metric to draw"):
        Trajectory(scores=[Scored(checkpoint=Made(steps=1), value=1.0)], metrics=[])
