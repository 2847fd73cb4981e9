"""Stop requests, on a real store with a clock in the hand."""

from pathlib import Path

from marin.store import (
    StopWatch,
    Store,
    Submission,
    ask_to_stop,
    ask_to_stop_now,
    read_stop,
    read_submission,
    write_submission,
)
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


def test_now_is_looked_for_only_where_a_stop_was_asked_for(tmp_path: Path):
    store = Store.open(str(tmp_path / "store"), write=True)
    clock = clocks.Clock()
    watch = StopWatch(store.url, "run-1", clock=clock)
    assert not watch.asked
    assert not watch.now
    assert read_stop(store.url, "run-1") is None
    assert ask_to_stop_now(store.url, "run-1", user="ada")
    clock.advance(2.0)
    assert watch.asked
    assert watch.now
    assert read_stop(store.url, "run-1")["user"] == "ada"
    later = StopWatch(store.url, "run-2", clock=clock)
    ask_to_stop(store.url, "run-2", user="bob")
    assert later.asked
    assert not later.now


def test_submission_is_read_as_it_was_written(tmp_path: Path):
    store = Store.open(str(tmp_path / "store"), write=True)
    sent = Submission("run-1", "marin-run-1", "http://h:8265", "2026-12-01T10:00:00+00:00", "p.py", ("--lr", "1"))
    assert read_submission(store.url, "run-1") is None
    write_submission(store.url, sent)
    assert read_submission(store.url, "run-1") == sent
