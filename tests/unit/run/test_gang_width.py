"""How wide a gang is, and what its budget pays: over a scripted cluster and a clock that only the script moves."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from marin import AdamW, Decoder, Sequences, Step, Train
from marin.base.errors import ConfigurationError, Interrupted, StepError
from marin.graph.resources import Resources
from marin.run.failure import Failure, lost
from marin.run.formation import Formation, News, hold
from marin.run.gang import run_gang
from marin.run.order import GangOrder, Identity
from marin.run.rank import RankEnd
from marin.run.retry import Cause

KILLED = lost(Cause.LOST, "rank 0 was killed", where="", hint="-")
GONE = lost(Cause.LOST, "rank 1 was lost with its node", where="", hint="-")
ERROR = Failure(Cause.EXCEPTION, "ValueError", "ValueError: bad", "user.py:1 in f", "-")
Life = Callable[["ScriptedSite", int], News]
"""What a formation tells at each poll, given the site and its width."""


class ScriptedSite:
    """Nodes that come and go at said seconds; waiting for them moves the clock, as does each poll of a formation."""

    def __init__(self, *nodes: tuple[float, int], taken: int = 0, lives: Sequence[Life] = ()) -> None:
        self._nodes = nodes
        self._lives = list(lives)
        self.taken = taken
        self.now = 0.0
        self.held = 0
        self.asked_for: list[tuple[float, int]] = []
        self.formed: list[int] = []

    def clock(self) -> float:
        return self.now

    def most(self) -> int:
        return [number for at, number in self._nodes if at <= self.now][-1]

    @property
    def _free(self) -> int:
        return self.most() - self.taken

    def can_grow(self) -> bool:
        return self._free > self.held

    def reserve(self, nodes: int, timeout: float) -> bool:
        self.asked_for.append((self.now, nodes))
        if self._free < nodes:
            self.now += timeout
        self.held = nodes if self._free >= nodes else 0
        return self.held == nodes

    def lack(self, nodes: int) -> str:
        return f"{self._free} of {nodes} nodes"

    @contextlib.contextmanager
    def form(self, generation: int) -> Iterator[Formation]:
        self.formed.append(self.held)
        yield ScriptedFormation(self, self._lives.pop(0))


class ScriptedFormation:
    """Ranks whose life is a function."""

    def __init__(self, site: ScriptedSite, life: Life) -> None:
        self._site, self._life, self._width, self._stopped = site, life, site.held, False

    def poll(self, timeout: float) -> News:
        self._site.now += timeout
        if self._stopped:
            return News(ends=tuple(RankEnd(rank, 0.0, stopped=True) for rank in range(self._width)))
        return self._life(self._site, self._width)

    def stop(self) -> None:
        self._stopped = True

    def dump_stacks(self) -> None:
        raise AssertionError("nothing hangs here")

    def title(self, rank: int) -> str:
        return f"rank {rank}"


def finish(site: ScriptedSite, width: int) -> News:
    return News(ends=tuple(RankEnd(rank, 0.0, value=rank) for rank in range(width)))


def fail(failure: Failure) -> Life:
    return lambda site, width: News(ends=(RankEnd(0, 0.0, failure=failure),), alive=tuple(range(1, width)))


def stop(site: ScriptedSite, width: int) -> News:
    return News(ends=tuple(RankEnd(rank, site.now, stopped=True) for rank in range(width)))


def lose_node(site: ScriptedSite, width: int) -> News:
    """Go on until a node is gone: nothing is held any more then."""
    if site.most() >= width:
        return News()
    site.held = 0
    return fail(GONE)(site, width)


def grow_when_there_is_room(site: ScriptedSite, width: int) -> News:
    return News(room=site.can_grow())


def held_by(site: ScriptedSite, resources: Resources, said: list[str] | None = None, stop_at: float = 1e9) -> int:
    words = [] if said is None else said
    return hold(
        site,
        resources,
        emit=lambda kind, **fields: words.append(fields["detail"]),
        asked=lambda: site.now >= stop_at,
        clock=site.clock,
    )


ELASTIC = Resources(nodes=4, min_nodes=2, shrink_after=60)


def test_hold_takes_all_nodes_at_once_and_says_nothing():
    site, said = ScriptedSite((0, 4)), []
    assert held_by(site, ELASTIC, said) == 4
    assert (site.now, said) == (0, [])


def test_hold_waits_for_all_nodes_before_it_takes_fewer():
    site = ScriptedSite((0, 3), (50, 4))
    assert held_by(site, ELASTIC) == 4
    assert 50 <= site.now < 60
    assert {nodes for _, nodes in site.asked_for} == {4}


def test_hold_takes_as_many_as_there_are_once_it_has_waited():
    site = ScriptedSite((0, 3))
    assert held_by(site, ELASTIC) == 3
    assert 60 <= site.now < 65
    assert [nodes for at, nodes in site.asked_for if at < 60 and nodes < 4] == []


def test_hold_tries_narrower_widths_where_others_hold_nodes():
    site = ScriptedSite((0, 4), taken=2)
    assert held_by(site, ELASTIC) == 2
    assert [nodes for _, nodes in site.asked_for][-3:] == [4, 3, 2]


def test_hold_waits_on_below_the_least_nodes():
    site = ScriptedSite((0, 1), (500, 2))
    assert held_by(site, ELASTIC) == 2
    assert 500 <= site.now < 510
    assert 1 not in {nodes for _, nodes in site.asked_for}


def test_hold_rigid_gang_never_takes_fewer():
    site = ScriptedSite((0, 3), (1000, 4))
    assert held_by(site, Resources(nodes=4, shrink_after=60)) == 4
    assert site.now >= 1000
    assert {nodes for _, nodes in site.asked_for} == {4}


def test_hold_narrow_gang_that_is_whole_waits_for_nothing():
    site = ScriptedSite((0, 3))
    site.held = 3
    assert held_by(site, ELASTIC) == 3
    assert (site.now, site.asked_for) == (0, [])


def test_hold_narrow_gang_takes_all_nodes_once_they_are_there():
    site = ScriptedSite((0, 4))
    site.held = 3
    assert held_by(site, ELASTIC) == 4
    assert site.now == 0


def test_hold_gang_that_lost_its_room_waits_for_all_nodes_again():
    site = ScriptedSite((0, 2))
    assert held_by(site, ELASTIC) == 2
    site.held, began = 0, site.now
    assert held_by(site, ELASTIC) == 2
    assert site.now - began >= 60


@pytest.mark.parametrize("resources", [ELASTIC, Resources(nodes=4)])
def test_hold_ends_when_the_run_is_asked_to_stop(resources):
    site = ScriptedSite((0, 1))
    with pytest.raises(Interrupted):
        held_by(site, resources, stop_at=100)
    assert site.now < 110


def test_hold_says_why_it_waits_when_that_changes_and_not_too_often():
    site, said = ScriptedSite((0, 1), (4, 0), (30, 1), (100, 2)), []
    assert held_by(site, ELASTIC, said) == 2
    assert said == ["1 of 4 nodes", "0 of 4 nodes", "1 of 4 nodes"]


def outcome(
    site: ScriptedSite, root: Path, told: list[str] | None = None, asked: bool = False, **placed: Any
) -> list[Any]:
    identity = Identity(str(root / "store"), "run", "gang", "gang", "f" * 64, "run-ffffffff-1")
    resources = Resources(**{"nodes": 2, "min_nodes": 1, "shrink_after": 60, **placed})
    order = GangOrder(identity, b"", 2, resources, str(root / "attempt"), str(root / "checkpoints"))

    def pause(seconds: float) -> None:
        site.now += seconds

    def emit(kind: str, **fields: Any) -> None:
        if told is not None and kind == "state":
            told.append(f"{fields['state']}: {fields['detail']}")

    return run_gang(order, site, emit=emit, asked=lambda: asked, clock=site.clock, pause=pause)


def test_elastic_gang_goes_on_narrower_and_grows_without_a_budget(tmp_path):
    lives = [lose_node, grow_when_there_is_room, finish]
    site = ScriptedSite((0, 2), (1, 1), (100, 2), lives=lives)
    assert outcome(site, tmp_path, retries=0) == [0, 1]
    assert site.formed == [2, 1, 2]
    assert 100 <= site.now < 110


def test_elastic_gang_may_shrink_and_grow_any_number_of_times(tmp_path):
    lives = [lose_node, grow_when_there_is_room] * 5 + [finish]
    times = [(200.0 * i + offset, nodes) for i in range(5) for offset, nodes in ((0, 2), (10, 1))]
    site = ScriptedSite(*times, (1000, 2), lives=lives)
    assert outcome(site, tmp_path, retries=0) == [0, 1]
    assert site.formed == [2, 1] * 5 + [2]


def test_elastic_gang_whose_node_comes_back_in_time_has_spent_a_retry(tmp_path):
    def site() -> ScriptedSite:
        return ScriptedSite((0, 2), (1, 1), (30, 2), lives=[lose_node, finish])

    assert outcome(site(), tmp_path / "forgiven", retries=1) == [0, 1]
    with pytest.raises(StepError, match="lost with its node"):
        outcome(site(), tmp_path / "spent", retries=0)


@pytest.mark.parametrize("nodes", [1, 2])
def test_elastic_gang_whose_rank_dies_on_sound_nodes_spends_a_retry(tmp_path, nodes):
    site = ScriptedSite((0, nodes), lives=[fail(KILLED)] * 3)
    with pytest.raises(StepError, match="rank 0 was killed"):
        outcome(site, tmp_path, retries=2)
    assert site.formed == [nodes] * 3


def test_elastic_gang_that_raises_is_formed_once(tmp_path):
    site = ScriptedSite((0, 2), lives=[fail(ERROR)])
    with pytest.raises(StepError, match="bad"):
        outcome(site, tmp_path)
    assert site.now < 60


def test_gang_that_has_kept_a_checkpoint_has_its_whole_budget_again(tmp_path):
    def keep_then_die(site: ScriptedSite, width: int) -> News:
        folder = tmp_path / "checkpoints" / f"step-{len(site.formed)}"
        folder.mkdir(parents=True)
        (folder / "MANIFEST.json").write_text("{}")
        return fail(KILLED)(site, width)

    site = ScriptedSite((0, 2), lives=[*[keep_then_die] * 4, fail(KILLED)])
    with pytest.raises(StepError):
        outcome(site, tmp_path, retries=1)
    assert len(site.formed) == 5  # the last one has kept nothing, after one loss


def test_gang_that_runs_is_told_so_once_all_its_ranks_have_started(tmp_path):
    told: list[str] = []
    assert outcome(ScriptedSite((0, 2), lives=[finish]), tmp_path, told) == [0, 1]
    assert told == ["running: forming a gang of 2, generation 1", "running: a gang of 2, generation 1"]


@pytest.mark.parametrize(
    ("kept", "words"),
    [
        (False, "there is no checkpoint yet: the same command begins anew"),
        (True, "the same command continues at the last checkpoint"),
    ],
)
def test_gang_that_ends_says_where_the_next_attempt_begins(tmp_path, kept, words):
    if kept:
        folder = tmp_path / "checkpoints" / "step-1"
        folder.mkdir(parents=True)
        (folder / "MANIFEST.json").write_text("{}")
    with pytest.raises(StepError) as failed:
        outcome(ScriptedSite((0, 2), lives=[fail(ERROR)]), tmp_path)
    assert failed.value.hint.endswith(words)
    with pytest.raises(Interrupted) as stopped:
        outcome(ScriptedSite((0, 2), lives=[stop]), tmp_path, asked=True)
    assert stopped.value.what == f"stopped; {words}"


def test_gang_waits_longer_before_each_further_try(tmp_path):
    site = ScriptedSite((0, 2), lives=[fail(KILLED)] * 6)
    with pytest.raises(StepError):
        outcome(site, tmp_path, retries=5)
    assert 0 + 1 + 2 + 4 + 8 <= site.now < 25


class Rows(Step[Sequences]):
    """Stands for data."""


def test_train_on_more_ranks_than_its_batch_has_sequences_is_refused_as_it_is_written():
    model = Decoder(layers=1, width=8, heads=1)
    train = Train(data=Rows(), model=model, optimizer=AdamW(lr=0.01), tokens=1000, batch=7)
    assert train.on(ranks=7).on(ranks=6, nodes=3, min_nodes=1).placed.resources.num_ranks == 6
    for placed in ({"ranks": 8}, {"gpus": 4, "nodes": 2}, {"nodes": 8, "min_nodes": 1}):
        with pytest.raises(ConfigurationError, match="a batch of 7 sequences cannot feed 8 ranks") as raised:
            train.on(**placed)
        assert raised.value.hint.startswith("give `batch` at least 8")
