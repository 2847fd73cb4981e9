"""Who is blamed, who is suspected: the gang's policy over a scripted cluster and clock."""

from collections.abc import Sequence

import pytest

from marin.run.failure import Failure, lost
from marin.run.formation import News
from marin.run.gang import Movement, blame, watch
from marin.run.rank import RankEnd
from marin.run.retry import Cause

LOSS = lost(Cause.LOST, "rank was killed", where="", hint="-")
ERROR = Failure(Cause.EXCEPTION, "ValueError", "ValueError: bad", "user.py:1 in f", "-")


class ScriptedFormation:
    """Stands for a cluster: each poll takes the next news and a second of the clock."""

    def __init__(self, news: Sequence[News], seconds: float = 1.0) -> None:
        self.news = list(news)
        self.now = 0.0
        self.seconds = seconds
        self.stops = 0
        self.dumps = 0

    def clock(self) -> float:
        return self.now

    def poll(self, timeout: float) -> News:
        self.now += min(timeout, self.seconds)
        return self.news.pop(0) if len(self.news) > 1 else self.news[0]

    def stop(self) -> None:
        self.stops += 1

    def dump_stacks(self) -> None:
        self.dumps += 1

    def title(self, rank: int) -> str:
        return f"rank {rank} of 2 on node here"


def _watch(formation: ScriptedFormation, num_ranks: int):
    return watch(formation, num_ranks, clock=formation.clock)


def test_watch_all_ranks_end_returns_values_by_rank():
    ends = [RankEnd(1, 2.0, value="b"), RankEnd(0, 1.0, value="a")]
    assert _watch(ScriptedFormation([News(ends=(end,)) for end in ends]), 2) == ["a", "b"]


def test_watch_peer_raises_before_the_death_is_seen_blames_the_dead_rank():
    echo = News(ends=(RankEnd(0, 1.0, failure=ERROR),))
    death = News(ends=(RankEnd(1, 2.0, failure=LOSS),))
    assert _watch(ScriptedFormation([echo, News(), death]), 2) == LOSS


def test_watch_silent_rank_after_an_exception_counts_as_lost():
    outcome = _watch(ScriptedFormation([News(ends=(RankEnd(0, 1.0, failure=ERROR),)), News()]), 2)
    assert isinstance(outcome, Failure)
    assert (outcome.cause, "rank 1" in outcome.message) == (Cause.LOST, True)


def test_watch_exception_with_live_peers_is_the_users():
    news = [News(ends=(RankEnd(0, 1.0, failure=ERROR),)), News(alive=(1,))]
    assert _watch(ScriptedFormation(news), 2) == ERROR


def test_watch_hung_rank_is_dumped_and_reported():
    formation = ScriptedFormation([News(beats=((0, "train", step), (1, "train", step))) for step in range(5)])
    outcome = _watch(formation, 2)
    assert isinstance(outcome, Failure)
    assert outcome.cause is Cause.HUNG
    assert formation.dumps == 1
    assert 60 <= formation.now <= 70


def test_watch_rank_that_freezes_before_its_first_beat_is_blamed_for_those_that_wait_for_it():
    first = News(beats=((0, "train", 0),), alive=(0, 1))
    moves = [News(beats=((0, "train", step),), alive=(0,)) for step in range(1, 5)]
    outcome = _watch(ScriptedFormation([first, *moves]), 2)
    assert isinstance(outcome, Failure)
    assert (outcome.cause, outcome.message) == (
        Cause.HUNG,
        "rank 1 of 2 on node here gives no sign of life: it has not begun to move",
    )


def test_watch_ranks_that_all_freeze_before_their_first_beat_are_not_waited_for_for_ever():
    formation = ScriptedFormation([News(alive=(0, 1)), News()])
    outcome = _watch(formation, 2)
    assert isinstance(outcome, Failure)
    assert (outcome.cause, formation.dumps) == (Cause.HUNG, 1)
    assert outcome.message.startswith("rank 0 of 2 on node here, rank 1 of 2 on node here give no sign of life")
    assert 600 <= formation.now <= 610


def test_watch_one_rank_told_to_stop_stops_all_once():
    ends = tuple(RankEnd(rank, 1.0, stopped=True) for rank in range(2))
    formation = ScriptedFormation([News(stopping=True), News(stopping=True), News(ends=ends)])
    outcome = _watch(formation, 2)
    assert isinstance(outcome, Failure)
    assert (outcome.cause, formation.stops) == (Cause.PREEMPTED, 1)


def test_watch_rank_that_stops_before_it_could_say_so_stops_all():
    first = News(ends=(RankEnd(0, 1.0, stopped=True),))
    formation = ScriptedFormation([first, News(alive=(1,)), News(ends=(RankEnd(1, 2.0, stopped=True),))])
    outcome = _watch(formation, 2)
    assert isinstance(outcome, Failure)
    assert (outcome.cause, formation.stops) == (Cause.PREEMPTED, 1)


def test_blame_earliest_exception_first():
    later = Failure(Cause.EXCEPTION, "RuntimeError", "connection closed by peer", "", "-")
    assert blame([RankEnd(0, 2.0, failure=later), RankEnd(1, 1.0, failure=ERROR)], [], str) == ERROR


@pytest.mark.parametrize(("median", "limit"), [(1.0, 60.0), (10.0, 200.0)])
def test_movement_limit_is_a_minute_or_twenty_steps(median, limit):
    movement = Movement()
    for step in range(5):
        movement.see(0, "train", step, step * median)
    still = 4 * median
    assert movement.suspects(still + limit) == []
    assert movement.suspects(still + limit + 0.1) == [0]


def test_movement_rank_without_beats_or_before_its_first_step_is_given_time():
    movement = Movement()
    assert movement.suspects(1e9) == []
    movement.see(0, "compile", 0, 0.0)
    assert movement.suspects(599) == []
    assert movement.suspects(601) == [0]
