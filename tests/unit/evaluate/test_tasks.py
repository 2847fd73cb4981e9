"""`EvaluateTasks` on a real store: scores beside a direct computation, the per-item table, canaries, refusals."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

import marin
from marin import Choices, Continuation, EvaluateTasks, ExactMatch, Items, Step, Task
from marin.base.errors import ConfigurationError, StepError
from marin.evaluate import choices, tasks
from marin.evaluate.canaries import Asked, CanaryError, check_choices, check_continuations
from marin.evaluate.checkpoint import LoadedCheckpoint
from marin.evaluate.choices import credit, encode_items
from marin.evaluate.conversation import ChatPrompts, template_name, template_of
from marin.evaluate.items import Item, build_items
from marin.evaluate.summary import summarise_task
from marin.store import Store
from marin.view.evaluations import compare

ROWS = [
    {
        "q": f"which planet is number {number}?",
        "choices": ["Mars", "Venus and others", "the return of x", "東京"][: 2 + number % 3],
        "gold": number % 2,
        "answer": "Mars" if number % 2 else "x = 1",
    }
    for number in range(9)
]
CHOICES = Choices(choices="choices", gold="gold")


def written(tmp_path: Path, rows: list[dict[str, Any]], name: str = "rows.jsonl") -> Items:
    (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Items(url=str(tmp_path / name))


def task(tmp_path: Path, **changes: Any) -> Task:
    items = changes.pop("items", None) or written(tmp_path, ROWS)
    fields = {"name": "planets", "prompt": "Question: {q}\nAnswer:", "answer": CHOICES, "items": items}
    return Task(**{**fields, **changes})


def evaluated(step: EvaluateTasks, tmp_path: Path) -> tuple[dict[str, float], list[dict[str, Any]]]:
    scores = marin.run(step, store=tmp_path / "store", backend="inline")
    return scores.metrics, pq.read_table(scores.file("items.parquet").url).to_pylist()


@torch.no_grad()
def log_likelihood(checkpoint: LoadedCheckpoint, context: str, continuation: str) -> float:
    """Of byte-level text whose border no token crosses."""
    before, whole = checkpoint.encode(context), checkpoint.encode(context + continuation)
    assert whole[: len(before)] == before
    logits = checkpoint.model(torch.tensor([[0, *whole][:-1]]))[0].double()
    values = torch.log_softmax(logits, dim=1)[torch.arange(len(whole)), torch.tensor(whole)]
    return float(values[len(before) :].sum())


def test_choices_score_as_a_direct_computation_says(
    tmp_path: Path, trained: Step[marin.Checkpoint], checkpoint: LoadedCheckpoint
) -> None:
    metrics, items = evaluated(EvaluateTasks(checkpoint=trained, tasks=[task(tmp_path)]), tmp_path)
    right: dict[str, list[float]] = {"acc": [], "acc_norm": [], "acc_per_token": []}
    gold_nats = gold_bytes = 0.0
    for row, item in zip(ROWS, items, strict=True):
        prompt = f"Question: {row['q']}\nAnswer:"
        values = [log_likelihood(checkpoint, prompt, f" {choice}") for choice in row["choices"]]
        assert item["log_likelihoods"] == pytest.approx(values, abs=3e-5)
        lengths = [len(checkpoint.encode(f" {choice}")) for choice in row["choices"]]
        sizes = [len(choice.encode()) for choice in row["choices"]]
        assert (item["tokens"], item["bytes"], item["choices"]) == (lengths, sizes, row["choices"])
        right["acc"].append(float(np.argmax(values) == row["gold"]))
        right["acc_norm"].append(float(np.argmax(np.divide(values, sizes)) == row["gold"]))
        right["acc_per_token"].append(float(np.argmax(np.divide(values, lengths)) == row["gold"]))
        assert item["chosen"] == np.argmax(values)
        assert item["correct"] == (right["acc"][-1] == 1)
        gold_nats -= values[row["gold"]]
        gold_bytes += sizes[row["gold"]]
    for name, earned in right.items():
        assert metrics[f"planets/{name}"] == pytest.approx(np.mean(earned))
        assert metrics[f"planets/{name}_stderr"] == pytest.approx(np.std(earned, ddof=1) / 3)
    assert metrics["planets/bits_per_byte"] == pytest.approx(gold_nats / math.log(2) / gold_bytes, rel=1e-5)
    assert metrics["planets/items"] == 9
    assert metrics["planets/chance"] == pytest.approx(np.mean([1 / len(row["choices"]) for row in ROWS]))
    assert 0 < len({item["prompt_digest"] for item in items}) == 9


def test_scores_do_not_depend_on_batches_or_shards(
    tmp_path: Path, trained: Step[marin.Checkpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    step = EvaluateTasks(checkpoint=trained, tasks=[task(tmp_path, shots=2)])
    metrics, items = evaluated(step, tmp_path / "one")
    monkeypatch.setattr(tasks, "SHARD_ITEMS", 4)
    smaller = EvaluateTasks(checkpoint=trained, tasks=[task(tmp_path, shots=2)], batch_tokens=50)
    metrics_again, items_again = evaluated(smaller, tmp_path / "two")
    assert metrics_again == pytest.approx(metrics, abs=1e-5)
    for before, after in zip(items, items_again, strict=True):
        assert after.pop("log_likelihoods") == pytest.approx(before.pop("log_likelihoods"), abs=3e-5)
        assert after == before


def test_several_tasks_of_each_kind_stand_in_one_table(tmp_path: Path, trained: Step[marin.Checkpoint]) -> None:
    likely = task(tmp_path, name="text", answer=Continuation(target="{answer}"))
    exact = task(tmp_path, name="exact", answer=ExactMatch(target="{answer}", max_tokens=5, stop=("?",)))
    step = EvaluateTasks(checkpoint=trained, tasks=[task(tmp_path), likely, exact])
    metrics, items = evaluated(step, tmp_path)
    assert [item["task"] for item in items] == ["planets"] * 9 + ["text"] * 9 + ["exact"] * 9
    assert metrics["text/loss"] > 0
    assert metrics["text/perplexity"] == pytest.approx(math.exp(metrics["text/loss"]))
    assert metrics["text/bits_per_byte_stderr"] > 0
    assert 0 <= metrics["exact/exact_match"] <= 1
    assert all(isinstance(item["completion"], str) for item in items[18:])
    details = json.loads(
        marin.load(step, store=tmp_path / "store").contents.reader.read(
            marin.load(step, store=tmp_path / "store").file("scores.json")
        )
    )
    assert (
        details["tasks"]["planets"]["conditioning"]
        == "each text follows '<|endoftext|>' once; no token is added after it"
    )
    assert [details["tasks"][name]["canary_items"] for name in ("planets", "text", "exact")] == [9, 9, 9]


def test_evaluations_are_compared_item_by_item(tmp_path: Path, trained: Step[marin.Checkpoint]) -> None:
    exact = task(tmp_path, name="exact", answer=ExactMatch(target="{answer}", max_tokens=2, stop=("?",)))
    metrics = []
    for shots in (0, 2):
        step = EvaluateTasks(checkpoint=trained, tasks=[task(tmp_path, shots=shots), exact])
        metrics.append(evaluated(step, tmp_path)[0])
    store = Store.open(str(tmp_path / "store"), write=False)
    made = sorted((each for each in store.manifests() if each.step == "evaluate-tasks"), key=lambda each: each.moment)
    comparison = compare(store, *made)
    assert comparison is not None
    assert (comparison.only_a, comparison.only_b, comparison.other_prompts) == (0, 0, 9)
    found = {f"{each.task}/{each.measure}": each for each in comparison.compared}
    names = [f"planets/{measure}" for measure in ("acc", "acc_norm", "acc_per_token", "bits_per_byte")]
    assert list(found) == [*names, "exact/exact_match"]
    for name, each in found.items():
        assert [each.difference.a, each.difference.b] == pytest.approx([side[name] for side in metrics])
        assert each.difference.low <= each.difference.difference <= each.difference.high


def test_exact_match_counts_a_model_that_writes_the_target(
    tmp_path: Path, trained: Step[marin.Checkpoint], checkpoint: LoadedCheckpoint
) -> None:
    step = marin.Generate(checkpoint=trained, prompts=[f"{row['q']}" for row in ROWS], max_tokens=4)
    texts = [row["completion"] for row in marin.run(step, store=tmp_path / "store", backend="inline").to_rows()]
    rows = [{"q": row["q"], "a": [f" {text} ", "other"]} for row, text in zip(ROWS, texts, strict=True)]
    usable = [row for row in rows if row["a"][0].strip() and "�" not in row["a"][0]]
    rows = [*usable, {"q": "x", "a": ["never written"]}]
    exact = Task(
        name="exact",
        prompt="{q}",
        answer=ExactMatch(target="{a}", max_tokens=4, stop=()),
        items=written(tmp_path, rows, "exact.jsonl"),
    )
    metrics, _ = evaluated(EvaluateTasks(checkpoint=trained, tasks=[exact]), tmp_path)
    assert metrics["exact/exact_match"] == pytest.approx(len(usable) / len(rows))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"q": "x" * 10, "choices": ["a", "b" * 200]}, "longer than the model's context"),
        ({"choices": ["Mars"]}, "nothing to choose"),
        ({"gold": 7}, "gold index 7"),
    ],
)
def test_one_bad_row_fails_the_step_and_leaves_no_score(
    tmp_path: Path, trained: Step[marin.Checkpoint], changes: dict[str, Any], message: str
) -> None:
    rows = [*ROWS, {**ROWS[0], **changes}]
    step = EvaluateTasks(checkpoint=trained, tasks=[task(tmp_path, items=written(tmp_path, rows))])
    with pytest.raises(StepError, match=message):
        marin.run(step, store=tmp_path / "store", backend="inline")
    assert marin.plan(step, store=tmp_path / "store").steps[-1].state != "cached"


def test_model_whose_logits_are_not_finite_fails_the_step(tmp_path: Path, diverged: Step[marin.Checkpoint]) -> None:
    with pytest.raises(StepError, match="not finite"):
        marin.run(EvaluateTasks(checkpoint=diverged, tasks=[task(tmp_path)]), store=tmp_path / "s", backend="inline")


def test_long_prompts_are_cut_and_counted(tmp_path: Path, trained: Step[marin.Checkpoint]) -> None:
    rows = [*ROWS[:2], {**ROWS[0], "q": "x = 1\n" * 200}]
    step = EvaluateTasks(checkpoint=trained, tasks=[task(tmp_path, items=written(tmp_path, rows))])
    metrics, items = evaluated(step, tmp_path)
    assert metrics["planets/cut_items"] == 1
    assert [item["cut"] > 0 for item in items] == [False, False, True]


def test_tasks_with_one_name_are_refused(tmp_path: Path, trained: Step[marin.Checkpoint]) -> None:
    with pytest.raises(ConfigurationError, match="2 tasks are named 'planets'"):
        EvaluateTasks(checkpoint=trained, tasks=[task(tmp_path), task(tmp_path)])


def test_items_moved_to_another_folder_are_the_same_and_changed_ones_are_not(
    tmp_path: Path, trained: Step[marin.Checkpoint]
) -> None:
    (tmp_path / "other").mkdir()
    step = EvaluateTasks(checkpoint=trained, tasks=[task(tmp_path)])
    marin.run(step, store=tmp_path / "store", backend="inline")
    moved = task(tmp_path, items=written(tmp_path / "other", ROWS))
    changed = task(tmp_path, items=written(tmp_path / "other", ROWS[1:], "changed.jsonl"))
    for found, is_same in ((moved, True), (changed, False)):
        again = EvaluateTasks(checkpoint=trained, tasks=[found])
        planned = marin.plan(again, store=tmp_path / "store").steps[-1]
        assert (planned.state == "cached") == is_same


ITEMS = [
    Item(
        str(number), f"Question {number}: what?", ("Mars", "Mars and Venus", "x", "Mars")[: 2 + number % 3], number % 2
    )
    for number in range(8)
]


def asked(checkpoint: LoadedCheckpoint) -> Asked:
    return Asked(ITEMS, encode_items(checkpoint, ITEMS, " "), checkpoint.context)


def test_canaries_pass_also_where_choices_begin_alike_or_are_the_same(checkpoint: LoadedCheckpoint) -> None:
    assert check_choices(asked(checkpoint)) == len(ITEMS)
    whole = [item._replace(answers=item.answers[:1], gold=0) for item in ITEMS]
    assert check_continuations(Asked(whole, encode_items(checkpoint, whole, " "), checkpoint.context)) == len(ITEMS)


def test_canary_notices_a_scorer_that_gives_ties_to_the_first(
    checkpoint: LoadedCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choices, "credit", lambda values, right: float(right[values.index(max(values))]))
    with pytest.raises(CanaryError, match="equally likely"):
        check_choices(asked(checkpoint))


def test_canary_notices_a_scorer_that_prefers_short_answers(
    checkpoint: LoadedCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    shortest = lambda values, right: float(right[0])  # noqa: E731
    monkeypatch.setattr(choices, "credit", shortest)
    with pytest.raises(CanaryError, match="always prefers the gold"):
        check_choices(asked(checkpoint))


def test_canary_of_exact_match_fails_the_step_where_no_answer_could_be_right(
    tmp_path: Path, trained: Step[marin.Checkpoint]
) -> None:
    exact = task(tmp_path, answer=ExactMatch(target="{answer}", max_tokens=4, stop=("=",)))
    with pytest.raises(StepError, match="the canary failed"):
        marin.run(EvaluateTasks(checkpoint=trained, tasks=[exact]), store=tmp_path / "store", backend="inline")


def test_credit_is_shared_by_equals() -> None:
    assert credit([-1.0, -1.0, -2.0], [True, False, False]) == 0.5
    assert credit([-1.0, -2.0], [False, True]) == 0.0


def test_summary_of_known_rows(tmp_path: Path) -> None:
    rows: list[Any] = [
        {"log_likelihoods": [-math.log(2) * size, -9.0], "bytes": [4, 1], "gold": 0, "cut": 0, "choices": ["abcd", "b"]}
        | {"acc": acc, "acc_norm": acc, "acc_per_token": acc}
        for size, acc in ((4, 1.0), (12, 0.0))
    ]
    scores = summarise_task(task(tmp_path).form, rows)
    assert scores["bits_per_byte"] == pytest.approx(2.0)
    assert scores["bits_per_byte_stderr"] == pytest.approx(1.0)
    assert scores["acc"] == 0.5
    assert scores["acc_stderr"] == pytest.approx(0.5)
    first = -math.log1p(math.exp(-9 + 4 * math.log(2)))
    second = -math.log1p(math.exp(-9 + 12 * math.log(2)))
    assert scores["choice_log_probability"] == pytest.approx((first + second) / 2)
    assert "acc_stderr" not in summarise_task(task(tmp_path).form, rows[:1])


TEMPLATE = (
    "{% for message in messages %}<|endoftext|>{{ message['role'] }}\n{{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|endoftext|>assistant\n{% endif %}"
)


@pytest.mark.parametrize("shots", [0, 1])
def test_chat_template_asks_in_turns_and_is_named_in_the_scores(
    tmp_path: Path, trained: Step[marin.Checkpoint], checkpoint: LoadedCheckpoint, shots: int
) -> None:
    asked = task(tmp_path, shots=shots, description="Be brief.")
    step = EvaluateTasks(checkpoint=trained, tasks=[asked], chat_template=TEMPLATE)
    scores = marin.run(step, store=tmp_path / "store", backend="inline")
    rows = pq.read_table(scores.file("items.parquet").url).to_pylist()
    details = json.loads(scores.contents.reader.read(scores.file("scores.json")))["tasks"]["planets"]
    assert details["chat_template"].startswith("the step's, sha256 ")
    (item,) = build_items(asked.form, ROWS, None, range(1), ChatPrompts(TEMPLATE, checkpoint))
    turns = item.prompt.split("<|endoftext|>")[1:]
    assert turns[0] == "system\nBe brief.\n"
    assert [turn.partition("\n")[0] for turn in turns[1:]] == ["user", "assistant"] * (shots + 1)
    assert turns[-2:] == [f"user\nQuestion: {ROWS[0]['q']}\nAnswer:\n", "assistant\n"]
    before = [token for turn in turns for token in (0, *checkpoint.encode(turn))]
    expected = []
    for choice in ROWS[0]["choices"]:
        ids = [*before, *checkpoint.encode(choice)][-97:]  # the model sees 96, and the last is only predicted
        with torch.no_grad():
            values = torch.log_softmax(checkpoint.model(torch.tensor([ids[:-1]]))[0].double(), dim=1)
        own = len(checkpoint.encode(choice))
        expected.append(float(values[torch.arange(len(ids) - 1), torch.tensor(ids[1:])][-own:].sum()))
    assert rows[0]["log_likelihoods"] == pytest.approx(expected, abs=3e-5)


def test_chat_template_is_the_checkpoints_own_only_when_asked(
    tmp_path: Path, trained: Step[marin.Checkpoint], checkpoint: LoadedCheckpoint
) -> None:
    plain = EvaluateTasks(checkpoint=trained, tasks=[task(tmp_path)])
    scores = marin.run(plain, store=tmp_path / "store", backend="inline")
    assert (
        json.loads(scores.contents.reader.read(scores.file("scores.json")))["tasks"]["planets"]["chat_template"] is None
    )
    with pytest.raises(StepError, match="has no chat template"):
        evaluated(EvaluateTasks(checkpoint=trained, tasks=[task(tmp_path)], chat_template=True), tmp_path)
    assert template_of(True, "own") == "own"
    assert template_of(False, "own") is None
    assert template_name("own", "own") != template_name("own", None)


def test_chat_template_writes_the_prompt_of_exact_match(tmp_path: Path, trained: Step[marin.Checkpoint]) -> None:
    exact = task(tmp_path, answer=ExactMatch(target="{answer}", max_tokens=4))
    metrics, rows = evaluated(EvaluateTasks(checkpoint=trained, tasks=[exact], chat_template=TEMPLATE), tmp_path)
    _, plain = evaluated(EvaluateTasks(checkpoint=trained, tasks=[exact]), tmp_path)
    assert metrics["planets/items"] == 9
    assert all(row["prompt_digest"] != other["prompt_digest"] for row, other in zip(rows, plain, strict=True))


@pytest.mark.parametrize(
    ("template", "rows", "message"),
    [
        ("{% for", ROWS, "no Jinja"),
        ("{{ raise_exception('no system') }}", ROWS, "refuses the conversation"),
        (TEMPLATE, [{**ROWS[0], "q": "a <|endoftext|> b"}], "control string"),
        (TEMPLATE, [{**ROWS[0], "choices": ["<|endoftext|>", "x"]}], "control string"),
    ],
)
def test_chat_that_cannot_be_written_fails_the_step(
    tmp_path: Path, trained: Step[marin.Checkpoint], template: str, rows: list[dict[str, Any]], message: str
) -> None:
    asked = task(tmp_path, items=written(tmp_path, rows))
    with pytest.raises(StepError, match=message):
        evaluated(EvaluateTasks(checkpoint=trained, tasks=[asked], chat_template=template), tmp_path)
