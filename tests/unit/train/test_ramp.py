"""Batches that grow: which sequences each step takes, for any ramp, exactly once and in order."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin import AdamW, BatchRamp, Decoder, Records, Resources, Shuffle, Tokenize, Train, TrainTokenizer
from marin.base.errors import ConfigurationError
from marin.train.ramp import plan_steps


def sizes(tokens: int, context: int, batch: int, ramp: BatchRamp | None) -> list[int]:
    plan = plan_steps(tokens=tokens, context=context, batch=batch, ramp=ramp)
    return [plan.batch(step) for step in range(plan.num_steps)]


def test_batch_without_a_ramp_is_the_same_each_step_and_covers_the_tokens() -> None:
    assert sizes(100, 8, 4, None) == [4] * 4


def test_batch_with_a_ramp_grows_in_equal_stretches_of_tokens() -> None:
    ramp = BatchRamp(start=2, increment=2, tokens=96)
    assert sizes(400, 8, 8, ramp) == [2, 2, 4, 6] + [8] * 5


def test_run_that_ends_inside_the_ramp_never_reaches_the_full_batch() -> None:
    assert sizes(48, 8, 8, BatchRamp(start=2, increment=2, tokens=96)) == [2, 2, 4]


@settings(max_examples=200, deadline=None)
@given(
    start=st.integers(1, 9),
    increment=st.integers(1, 9),
    growths=st.integers(1, 6),
    ramp_tokens=st.integers(1, 5000),
    tokens=st.integers(1, 20_000),
    context=st.integers(1, 40),
)
def test_steps_of_any_ramp_follow_each_other_and_cover_the_tokens(
    start: int, increment: int, growths: int, ramp_tokens: int, tokens: int, context: int
) -> None:
    ramp, batch = BatchRamp(start=start, increment=increment, tokens=ramp_tokens), start + increment * growths
    plan = plan_steps(tokens=tokens, context=context, batch=batch, ramp=ramp)
    position, before = 0, start
    for step in range(plan.num_steps):
        assert plan.sequences(step) == position
        assert before <= plan.batch(step) <= batch
        before, position = plan.batch(step), position + plan.batch(step)
    assert plan.sequences(plan.num_steps) == position
    assert position * context >= tokens > (position - plan.batch(plan.num_steps - 1)) * context


DOCUMENTS = Records(texts=("a",))
TOKENIZER = TrainTokenizer(documents=DOCUMENTS, vocab_size=300)
DATA = Shuffle(tokens=Tokenize(documents=DOCUMENTS, tokenizer=TOKENIZER), context=16, seed=0)


def step(**options: object) -> Train:
    shape = Decoder(layers=1, width=8, heads=2)
    return Train(data=DATA, model=shape, optimizer=AdamW(lr=1e-3), tokens=100, **options)


@pytest.mark.parametrize(("start", "increment"), [(64, 8), (80, 8), (4, 7)])
def test_ramp_that_never_is_the_full_batch_is_refused(start: int, increment: int) -> None:
    with pytest.raises(ConfigurationError, match="never is the full batch of 64") as caught:
        step(ramp=BatchRamp(start=start, increment=increment, tokens=10))
    assert caught.value.where == "Train.ramp"


def test_ranks_beyond_the_smallest_batch_are_refused() -> None:
    growing = step(ramp=BatchRamp(start=4, increment=4, tokens=10))
    growing.check_resources(Resources(ranks=4))
    with pytest.raises(ConfigurationError, match="a batch of 4 sequences cannot feed 5 ranks"):
        growing.on(ranks=5)
