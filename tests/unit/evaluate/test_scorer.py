"""Likelihoods: equal to a direct computation whatever shares a pass; borders, cuts and refusals."""

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, processors

from marin import Decoder
from marin.base.errors import DataError
from marin.evaluate import packing
from marin.evaluate.canaries import KnownPredictor
from marin.evaluate.checkpoint import LoadedCheckpoint
from marin.evaluate.packing import batches
from marin.evaluate.requests import Pair, Request, encode_pairs, fit
from marin.evaluate.scorer import ModelPredictor, score_requests

TOLERANCE = 3e-5
CONTEXT = 64
SHAPES = {
    "llama, grouped": Decoder(layers=2, width=32, heads=4, kv_heads=2, vocab_size=300, context=CONTEXT),
    "qwen3, untied": Decoder(
        layers=2,
        width=32,
        heads=4,
        kv_heads=1,
        head_width=16,
        vocab_size=300,
        context=CONTEXT,
        qk_norm=True,
        tied=False,
    ),
    "qwen2": Decoder(layers=2, width=32, heads=4, vocab_size=300, context=CONTEXT, qkv_bias=True),
    "gpt2": Decoder(family="gpt2", layers=2, width=32, heads=4, vocab_size=300, context=CONTEXT),
}


def some_requests() -> list[Request]:
    """Contexts that begin alike or not, fit or not, with one to four continuations; some twice."""
    noise = random.Random(0)

    def ids(count: int) -> tuple[int, ...]:
        return tuple(noise.randrange(300) for _ in range(count))

    shots, found = ids(40), []
    for number in range(30):
        context = (shots if number % 3 else ()) + ids(noise.randrange(1, 35))
        found += [Request(context, ids(noise.randrange(1, 9))) for _ in range(noise.randrange(1, 5))]
    return [*found, *found[:3]]


@torch.no_grad()
def direct(checkpoint: LoadedCheckpoint, request: Request) -> tuple[float, bool]:
    ids, count = (request.context + request.continuation)[-CONTEXT - 1 :], len(request.continuation)
    logits = checkpoint.model(torch.tensor([ids[:-1]]))[0, -count:].double()
    targets = torch.tensor(ids[-count:])
    losses = torch.nn.functional.cross_entropy(logits, targets, reduction="sum")
    return float(losses), bool((logits.argmax(dim=1) == targets).all())


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("prefix_worth", [1, 10**9], ids=["prefixes", "no prefixes"])
def test_score_of_shared_passes_equals_a_direct_computation(
    shape: str, prefix_worth: int, make_checkpoint: Callable[..., LoadedCheckpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "CLUSTER_TOKENS", prefix_worth)
    checkpoint, requests = make_checkpoint(SHAPES[shape]), some_requests()
    expected = [direct(checkpoint, request) for request in requests]
    for batch_tokens in (1, 100, 16_384):
        scored = score_requests(ModelPredictor(checkpoint.model), requests, context=CONTEXT, batch_tokens=batch_tokens)
        assert [each.nats for each in scored] == pytest.approx([nats for nats, _ in expected], abs=TOLERANCE)
        assert [each.greedy for each in scored] == [greedy for _, greedy in expected]
        assert [each.tokens for each in scored] == [len(request.continuation) for request in requests]


def test_score_greedy_is_true_for_what_the_model_writes(checkpoint: LoadedCheckpoint) -> None:
    ids = [5, 6, 7]
    with torch.no_grad():
        for _ in range(3):
            ids.append(int(checkpoint.model(torch.tensor([ids]))[0, -1].argmax()))
    wanted = [Request((5, 6, 7), tuple(ids[3:])), Request((5, 6, 7), (ids[3], ids[4], (ids[5] + 1) % 300))]
    scored = score_requests(ModelPredictor(checkpoint.model), wanted, context=CONTEXT, batch_tokens=100)
    assert [each.greedy for each in scored] == [True, False]


def test_batches_share_prefix_and_context_so_that_each_token_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "CLUSTER_TOKENS", 0)
    shots = tuple(range(100, 132))
    requests = [Request((*shots, item), (choice, 9)) for item in (1, 2) for choice in (3, 4, 5)]
    (batch,) = batches(requests, batch_tokens=1000)
    assert batch.prefix == shots
    assert batch.tokens.shape == (2, 1 + 3)  # the item's own token and the first of each choice
    (alone,) = batches(requests[:1], batch_tokens=1000)
    assert alone.mask is None


def test_batches_hold_no_more_tokens_than_asked_and_little_padding() -> None:
    requests = [Request(tuple(range(length)), (1,)) for length in range(1, 400)]
    for batch in batches(requests, batch_tokens=2048):
        assert batch.tokens.size <= 2048
        assert batch.tokens.size <= 1.5 * sum(len(set(row)) for row in batch.tokens) + 2048 / 4


ids = st.lists(st.integers(0, 3), min_size=1, max_size=6).map(tuple)


@given(st.lists(st.tuples(st.sampled_from([(), (1,) * 16, (1,) * 16 + (2,) * 16]), ids, ids), min_size=1, max_size=30))
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
def test_batches_lead_every_target_through_its_own_tokens(drawn: list[tuple[tuple[int, ...], ...]]) -> None:
    """A table that knows each request by all its ids gets back what it holds: mask, border and owner are right."""
    requests = [Request(begin + context, continuation) for begin, context, continuation in drawn]
    whole = {request.context + request.continuation: request for request in requests}  # one border for equal ids
    totals = {request: float(2**number) for number, request in enumerate(whole.values())}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "CLUSTER_TOKENS", 0)
        patch.setattr(packing, "ROW_TOKENS", 8)
        scored = score_requests(KnownPredictor(totals), list(totals), context=CONTEXT, batch_tokens=30)
    nested = [
        request
        for request in totals
        for other in totals
        if other.context[: len(request.context)] == request.context and other is not request
    ]
    for request, each in zip(totals, scored, strict=True):
        if not nested:
            assert each.nats == totals[request]
        assert each.tokens == len(request.continuation)


def test_score_of_a_long_context_cuts_it_on_the_left_and_says_so(checkpoint: LoadedCheckpoint) -> None:
    long, short = Request(tuple(range(100)), (1, 2)), Request(tuple(range(37, 100)), (1, 2))
    cut, whole = score_requests(ModelPredictor(checkpoint.model), [long, short], context=CONTEXT, batch_tokens=1000)
    assert cut.cut == 37
    assert whole.cut == 0
    assert cut.nats == whole.nats
    assert len(fit(long, CONTEXT).request.context) + 2 - 1 == CONTEXT


def test_score_of_a_continuation_longer_than_the_context_is_refused(checkpoint: LoadedCheckpoint) -> None:
    predictor = ModelPredictor(checkpoint.model)
    assert score_requests(predictor, [Request((1,), (2,) * CONTEXT)], context=CONTEXT, batch_tokens=100)[0].tokens == 64
    with pytest.raises(DataError, match="longer than the model's context of 64"):
        score_requests(predictor, [Request((1,), (2,) * 65)], context=CONTEXT, batch_tokens=100)


def test_score_that_is_not_finite_is_refused_for_all(make_checkpoint: Callable[..., LoadedCheckpoint]) -> None:
    broken = make_checkpoint(SHAPES["qwen2"]).model
    with torch.no_grad():
        broken.output_weight[9] = torch.nan
    with pytest.raises(DataError, match="not finite"):
        score_requests(ModelPredictor(broken), [Request((1,), (2,))], context=CONTEXT, batch_tokens=100)


@pytest.mark.parametrize(
    ("context", "continuation"),
    [("which", " planet"), ("which ", "planet"), ("which \n", "planet"), ("retu", "rn x"), ("東", "京"), ("", "Mars")],
)
def test_pair_is_tokenized_together_and_split_at_the_border(
    context: str, continuation: str, checkpoint: LoadedCheckpoint
) -> None:
    (request,) = encode_pairs(checkpoint, [Pair(context, continuation)])
    assert request.context[0] == 0
    assert [*request.context[1:], *request.continuation] == checkpoint.encode(context + continuation)
    kept = checkpoint.tokenizer.decode(list(request.context[1:])).rstrip("�")  # a token may end inside a character
    assert context.rstrip().startswith(kept)
    first = checkpoint.tokenizer.decode([*request.context[1:], request.continuation[0]])
    assert len(first.encode()) > len(context.rstrip().encode()) or "�" in first


def test_pair_moves_the_trailing_space_so_that_both_spellings_score_alike(checkpoint: LoadedCheckpoint) -> None:
    one, two = encode_pairs(checkpoint, [Pair("Answer:", " Mars"), Pair("Answer: ", "Mars")])
    assert one == two


def test_pair_whose_token_reaches_over_the_border_gives_it_to_the_continuation(checkpoint: LoadedCheckpoint) -> None:
    whole = checkpoint.encode("return")
    assert len(whole) < 6
    (request,) = encode_pairs(checkpoint, [Pair("retur", "n")])
    assert [*request.context[1:], *request.continuation] == whole
    assert checkpoint.tokenizer.decode(list(request.continuation)).endswith("n")


def test_pair_without_a_token_in_the_continuation_is_refused(checkpoint: LoadedCheckpoint) -> None:
    with pytest.raises(DataError, match="no token of its own"):
        encode_pairs(checkpoint, [Pair("a", "")])


def test_start_token_of_a_tokenizer_is_put_once_whatever_the_text_says(
    make_checkpoint: Callable[..., LoadedCheckpoint],
) -> None:
    plain = make_checkpoint(SHAPES["qwen2"], bos_token_id=5)
    text = Tokenizer.from_str(plain.tokenizer_json.decode())
    text.post_processor = processors.TemplateProcessing("x $A", None, [("x", text.token_to_id("x"))])
    text.encode_special_tokens = True
    begun = replace(plain, tokenizer=text, tokenizer_json=text.to_str().encode())
    (request,) = encode_pairs(begun, [Pair("<|endoftext|>a", " b")])
    assert begun.leading_ids == begun.start_ids == (text.token_to_id("x"),)
    assert request.context[0] == text.token_to_id("x")
    assert [*request.context[1:], *request.continuation] == begun.encode("<|endoftext|>a b")
    assert 0 not in request.context  # a control string in a text is text


def test_start_token_that_the_tokenizer_leaves_out_stands_only_for_an_empty_context(
    make_checkpoint: Callable[..., LoadedCheckpoint],
) -> None:
    elsewhere = make_checkpoint(SHAPES["qwen2"], bos_token_id=5, eos_token_id=[0, 3])
    text, empty = encode_pairs(elsewhere, [Pair("which", " planet"), Pair("", "planet")])
    assert [*text.context, *text.continuation] == elsewhere.encode("which planet")
    assert empty.context == (5,)
    assert "no token is put before" in elsewhere.conditioning
    assert elsewhere.stop_ids == {0, 3}
    trained = make_checkpoint(SHAPES["qwen2"])
    assert encode_pairs(trained, [Pair("which", " planet")])[0].context[0] == 0
