"""Errands: answers are taken by one thread, in the order in which they come; errors too."""

import threading

import pytest

from marin.base.errors import StoreError
from marin.run.errands import Errands


@pytest.fixture
def errands():
    made = Errands()
    yield made
    made.close()


def test_errands_not_opened_are_done_at_once(errands):
    answers: list[int] = []
    errands.run(lambda: 1, answers.append)
    errands.open(1)
    errands.run(lambda: 2, answers.append)
    assert (answers, errands.waiting) == ([1, 2], 0)


def test_errands_are_under_way_together_and_answered_in_the_callers_thread(errands):
    together = threading.Barrier(3, timeout=60)
    answered: list[str] = []
    errands.open(3)
    for _ in range(3):
        errands.run(together.wait, lambda _: answered.append(threading.current_thread().name))
    assert errands.waiting == 3
    while errands.waiting:
        errands.collect(60)
    assert answered == [threading.current_thread().name] * 3


def test_errands_without_an_answer_in_time_are_still_waited_for(errands):
    ready, answers = threading.Event(), []
    errands.open(2)
    errands.run(ready.wait, answers.append)
    errands.collect(0.001)
    assert (answers, errands.waiting) == ([], 1)
    ready.set()
    errands.drain()
    assert (answers, errands.waiting) == ([True], 0)


def test_errands_error_is_raised_where_answers_are_taken_and_the_rest_can_be_drained(errands, caplog):
    def refuse() -> int:
        raise StoreError("no answer", where="s3://lab", hint="wait")

    answers: list[int] = []
    errands.open(2)
    errands.run(refuse, answers.append)
    with pytest.raises(StoreError, match="no answer"):
        errands.collect(60)
    errands.run(refuse, answers.append)
    errands.run(lambda: 3, answers.append)
    errands.drain()
    assert answers == [3]
    assert "no answer" in caplog.text
