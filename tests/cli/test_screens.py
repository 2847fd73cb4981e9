"""The live table, the lines of a pipe, and the curve, drawn on consoles of a given size."""

import io

import pytest
from rich.console import Console

from marin.cli.live import Lines, Tables
from marin.cli.plot import draw_curve
from marin.view.progress import RunProgress


def event(kind: str, second: int, **fields: object) -> dict[str, object]:
    return {"kind": kind, "time": f"2026-12-01T00:00:{second:02d}+00:00", "name": "train", **fields}


EVENTS = [
    event("state", 0, state="running", attempt="a1"),
    event("progress", 1, done=0, total=200, unit="steps"),
    event("metric", 11, values={"loss": 2.5, "tokens": 1000, "tokens_per_second": 123_456.0, "mfu": 0.412}),
    event("progress", 11, done=50, total=200, unit="steps"),
]


def console(width: int, *, height: int = 30) -> Console:
    return Console(file=io.StringIO(), width=width, height=height, force_terminal=True, markup=False, color_system=None)


def drawn(width: int, progress: RunProgress, *, height: int = 30) -> list[str]:
    """Return the lines of the last table drawn."""
    target = console(width, height=height)
    screen = Tables(target)
    screen.show(progress, [])
    with target.capture() as capture:
        target.print(screen._live.renderable)
    screen.close()
    return [line.rstrip() for line in capture.get().splitlines()]


@pytest.mark.parametrize("width", [80, 120])
def test_live_table_keeps_one_line_a_step_and_the_loss_in_sight(width):
    progress = RunProgress.of([("compression-baseline", "compression-baseline"), ("train", "train")])
    progress.apply(EVENTS)
    lines = drawn(width, progress)
    assert len(lines) == 2
    assert max(map(len, lines)) <= width - 3
    assert "50/200 steps" in lines[1]
    assert "loss 2.500" in lines[1]


def test_live_table_wide_shows_time_left_and_speed():
    progress = RunProgress.of([("train", "train")])
    progress.apply(EVENTS)
    (line,) = drawn(140, progress)
    assert "30 s left" in line
    assert "123k tokens/s, MFU 41.2%" in line


def test_live_table_more_steps_than_lines_shows_what_runs_and_counts_the_rest():
    progress = RunProgress.of([(f"step-{number}", "step") for number in range(500)] + [("train", "train")])
    progress.apply(EVENTS)
    lines = drawn(120, progress, height=20)
    assert lines[0].startswith("train")
    assert lines[1] == "501 steps: 500 waiting, 1 running"


def test_live_table_detail_of_a_waiting_step_is_a_note():
    progress = RunProgress.of([("train", "train")])
    progress.apply([event("state", 0, state="waiting", detail="run X of [someone] makes it")])
    assert drawn(80, progress)[1] == "train: run X of [someone] makes it"


def test_lines_repeat_no_state_and_no_progress_within_half_a_minute():
    file = io.StringIO()
    screen = Lines(Console(file=file, width=160, markup=False))
    progress = RunProgress.of([("train", "train")])
    for each in EVENTS:
        screen.show(progress, progress.apply([each]))
    assert [line.split(maxsplit=1)[1] for line in file.getvalue().splitlines()] == ["train running"]


def test_curve_shows_both_ranges_and_falls_from_left_to_right():
    lines = draw_curve([(float(x), 10.0 - x) for x in range(10)], width=20, height=5)
    assert lines[0].startswith("10.00 ┤")
    assert lines[4].startswith(" 1.00 ┤")
    assert lines[5].endswith("9 tokens")
    inked = [[index for index, mark in enumerate(line) if "\u2800" < mark <= "\u28ff"] for line in lines[:5]]
    assert inked == sorted(inked)


def test_curve_constant_loss_is_a_line():
    assert len(draw_curve([(0.0, 1.0), (1.0, 1.0)])) == 11


@pytest.mark.parametrize("points", [[], [(1.0, 2.0)], [(1.0, float("nan")), (2.0, float("inf")), (3.0, 1.0)]])
def test_curve_without_two_finite_points_is_not_drawn(points):
    assert draw_curve(points) == []
