"""Stop requests, on a real store with a clock in the hand."""

from pathlib import Path

from marin.store import StopWatch, Store, ask_to_stop
from marin.testing import clock as clocks


def test_request_is_seen_after_the_interval_and_stays(tmp_path: Path):
    store = Store.open(str(tmp_path / "store"), write=True)
    clock = clocks.Clock()
    watch = StopWatch(store.url, "run-1", interval=2.0, clock=clock)
    assert not watch.asked
    assert ask_to_stop(store.url, "run-1", user="ada")
    assert not watch.asked, "it looks at most every two seconds"
    clock.advance(2.0)
    assert watch.asked
    (tmp_path / "store" / "runs" / "run-1" / "stop.json").unlink()
    clock.advance(10.0)
    assert watch.asked, "once asked stays asked"


def test_asking_twice_is_asking_once_and_other_runs_go_on(tmp_path: Path):
    store = Store.open(str(tmp_path / "store"), write=True)
    assert ask_to_stop(store.url, "run-1", user="ada")
    assert not ask_to_stop(store.url, "run-1", user="bob")
    assert not StopWatch(store.url, "run-2").asked
