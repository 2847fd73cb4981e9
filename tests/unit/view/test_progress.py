"""Events folded into rows: the same events give the same rows, however they arrive."""

import hypothesis
from hypothesis import strategies

from marin.testing.clock import Clock
from marin.view.curve import MOST_POINTS, downsample
from marin.view.in_order import InOrder
from marin.view.progress import RunProgress, StepRow


def event(kind: str, second: int = 0, **fields: object) -> dict[str, object]:
    return {"kind": kind, "time": f"2026-12-01T00:00:{second:02d}+00:00", "name": "train", **fields}


def progress_of(*events: dict[str, object]) -> RunProgress:
    progress = RunProgress.of([("train", "train")])
    progress.apply(events)
    return progress


def test_apply_state_changes_returns_each_once():
    progress = RunProgress.of([("train", "train")])
    running = event("state", state="running", attempt="a1")
    changed = progress.apply([running, running, event("state", 9, state="done")])
    assert [row.state for row in changed] == ["running", "done"]
    assert progress.rows["train"].seconds("") == 9


def test_apply_event_after_the_end_changes_no_state():
    progress = progress_of(event("state", state="done"), event("state", 1, state="running", attempt="late"))
    assert progress.rows["train"].state == "done"


def test_apply_another_attempt_is_counted_and_measured_afresh():
    row = progress_of(
        event("state", 0, state="running", attempt="a1"),
        event("progress", 0, done=0, total=100, unit="steps"),
        event("progress", 10, done=50, total=100, unit="steps"),
        event("state", 20, state="waiting", detail="worker lost; trying again"),
        event("state", 30, state="running", attempt="a2"),
        event("progress", 30, done=50, total=100, unit="steps"),
        event("progress", 40, done=60, total=100, unit="steps"),
    ).rows["train"]
    assert row.attempts == 2
    assert row.rate == 1.0
    assert row.seconds_left == 40.0


def test_apply_metrics_of_rank_zero_make_the_curve():
    row = progress_of(
        event("metric", values={"loss": 3.0, "tokens": 10}, rank=0),
        event("metric", values={"loss": 9.0, "tokens": 10}, rank=1),
        event("metric", values={"loss": "nan", "tokens": 20}),
        event("metric", values={"loss": 2.0, "step": 30}),
    ).rows["train"]
    assert row.curve == [(10.0, 3.0), (30.0, 2.0)]


def test_apply_metrics_draws_what_comes_first_and_no_place_twice():
    row = progress_of(
        event("metric", values={"step": 1, "tokens": 10, "bits_per_byte": 3.0, "loss": 5.0}),
        event("metric", values={"step": 2, "tokens": 20, "bits_per_byte": 2.0, "loss": 4.0}),
        event("metric", values={"tokens": 20, "bits_per_byte": 2.5}),
    ).rows["train"]
    assert (row.curve_of, row.curve) == ("bits_per_byte", [(10.0, 3.0), (20.0, 2.0)])


def test_apply_samples_keeps_the_last_of_each_prompt():
    said = [("a", "x", 10), ("b", "y", 10), ("a", "z", 20)]
    samples = [{"prompt": prompt, "completion": completion, "step": step} for prompt, completion, step in said]
    row = progress_of(*[event("sample", sample=sample) for sample in samples], event("sample", sample="torn")).rows[
        "train"
    ]
    assert row.samples == {"a": (20, "z"), "b": (10, "y")}


def test_apply_foreign_and_malformed_events_are_passed_over():
    progress = progress_of({}, {"kind": "state"}, {"kind": "state", "name": "other", "state": "done"}, event("metric"))
    assert progress.rows["train"].state == "waiting"


def test_rate_without_progress_is_unknown():
    row = progress_of(event("state", state="running", attempt="a1")).rows["train"]
    assert (row.rate, row.seconds_left) == (0.0, None)


states = strategies.sampled_from(["waiting", "running", "done", "failed", "blocked", "stopped"])
events = strategies.one_of(
    strategies.builds(
        lambda state, attempt: event("state", state=state, attempt=attempt), states, strategies.text("ab", max_size=1)
    ),
    strategies.builds(lambda done: event("progress", done=done, total=10, unit="x"), strategies.integers(0, 10)),
    strategies.builds(lambda loss: event("metric", values={"loss": loss}), strategies.floats(0, 10)),
)


@hypothesis.given(strategies.lists(events, max_size=30), strategies.integers(0, 30))
def test_apply_in_two_polls_equals_one(recorded, cut):
    whole, parts = progress_of(*recorded), progress_of(*recorded[:cut])
    parts.apply(recorded[cut:])
    assert whole == parts


points = strategies.lists(strategies.floats(-1e6, 1e6), max_size=300).map(lambda ys: list(enumerate(map(float, ys))))


@hypothesis.given(points, strategies.integers(2, 50))
def test_downsample_keeps_extremes_order_and_bound(recorded, most):
    kept = downsample(recorded, most)
    assert len(kept) <= max(most, 2)
    assert kept == sorted(kept)
    assert set(kept) <= set(recorded)
    if recorded:
        ys = [y for _, y in recorded]
        assert {min(ys), max(ys)} <= {y for _, y in kept}


def test_downsample_few_points_are_left_alone():
    recorded = [(float(x), 0.0) for x in range(MOST_POINTS)]
    assert downsample(recorded) == recorded


def test_row_of_a_gang_runs_once_its_ranks_are_seen_at_work():
    progress = RunProgress.of([("train", "train")])
    forming = event("state", 5, state="running", attempt="a1", detail="forming a gang of 2, generation 1")
    progress.apply([event("state", 0, state="running", attempt="a1"), forming])
    assert progress.apply([event("progress", 4, done=1, total=9, unit="steps")]) == [], "of the gang before"
    (row,) = progress.apply([event("progress", 6, done=1, total=9, unit="steps", rank=0)])
    assert (row.state, row.detail) == ("running", "")
    again = event("state", 7, state="running", attempt="a1", detail="forming a gang of 2, generation 2")
    assert [row.detail for row in progress.apply([again])] == ["forming a gang of 2, generation 2"]
    assert len(progress.apply([event("metric", 8, values={"loss": 1.0}, rank=1)])) == 1


def test_row_that_is_done_has_done_all_units():
    row = progress_of(event("progress", done=1, total=2, unit="ticks"), event("state", 1, state="done")).rows["train"]
    assert (row.completed, row.to_json("")["progress"]["done"]) == (2, 2)


def test_words_of_a_row_say_no_state_twice():
    said = {
        ("stopped", "stopped: 3 of 4 shards are kept"): "stopped: 3 of 4 shards are kept",
        ("waiting", "waiting for 2 CPUs"): "waiting for 2 CPUs",
        ("failed", "ValueError: no"): "failed: ValueError: no",
        ("running", ""): "running",
    }
    for (state, detail), words in said.items():
        assert StepRow("a", "a", state=state, detail=detail).words == words


def test_in_order_gives_a_parents_end_before_its_childs_begin():
    clock = Clock()
    order = InOrder(1.5, clock=clock)
    child, parent = event("state", 2, state="running"), event("state", 1, state="done")
    assert order.take([child]) == []
    clock.advance(1)
    assert order.take([parent]) == []
    clock.advance(0.5)
    assert order.take([]) == [parent, child]
    late = event("state", 3)
    assert (order.take([late]), order.rest(), order.rest()) == ([], [late], [])
