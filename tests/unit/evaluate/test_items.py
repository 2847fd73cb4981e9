"""Rows of tasks as items: templates, gold, examples; whatever cannot be scored is refused by row."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from blake3 import blake3
from pyarrow import parquet

from marin.base.errors import ConfigurationError, DataError, InputError
from marin.evaluate.items import build_items, check_ids
from marin.evaluate.table_files import read_table
from marin.evaluate.task import Choices, Continuation, ExactMatch, Form
from marin.graph.files import FileRef

ARC = Form(prompt="Question: {q}\nAnswer:", answer=Choices(choices="choices.text", gold="key", labels="choices.label"))
ROW = {"q": "which planet is red?", "choices": {"text": ["Mars", "Venus"], "label": ["A", "B"]}, "key": "A"}


def form(**changes: Any) -> Form:
    return Form(**{**{name: getattr(ARC, name) for name in Form.model_fields}, **changes})


def built(asked: Form, rows: list[dict[str, Any]]) -> list[Any]:
    return build_items(asked, rows, None, range(len(rows)))


def test_item_has_prompt_choices_and_gold_of_its_row() -> None:
    (item,) = built(ARC, [ROW])
    assert item.prompt == "Question: which planet is red?\nAnswer:"
    assert item.answers == ("Mars", "Venus")
    assert item.gold == 0
    assert item.id == "0"


@pytest.mark.parametrize(
    ("answer", "row", "gold"),
    [
        (Choices(choices="c", gold="g"), {"c": ["x", "y"], "g": 1}, 1),
        (Choices(choices="c", gold="g"), {"c": ["x", "y"], "g": "y"}, 1),
        (Choices(options=("no", "yes"), gold="g"), {"g": True}, 1),
        (Choices(options=("{a}", "{b}"), gold="g", names=("1", "2")), {"a": "x", "b": "y", "g": "2"}, 1),
        (Choices(options=("{a}", "{b}"), gold="g", names=("1", "2")), {"a": "x", "b": "y", "g": 2}, 1),
    ],
)
def test_gold_is_an_index_a_truth_value_a_label_or_a_text(answer: Choices, row: dict[str, Any], gold: int) -> None:
    (item,) = built(Form(prompt="q", answer=answer), [row])
    assert item.gold == gold


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"choices": {"text": [], "label": []}}, "0 choices leave nothing to choose"),
        ({"choices": {"text": ["Mars"], "label": ["A"]}}, "1 choices leave nothing"),
        ({"choices": {"text": ["Mars", " "], "label": ["A", "B"]}}, "choice 1 is empty"),
        ({"choices": {"text": ["Mars", None], "label": ["A", "B"]}}, "holds no list of texts"),
        ({"choices": {"text": ["Mars", "Venus"], "label": ["A"]}}, "1 labels for 2 choices"),
        ({"choices": {"texts": ["Mars", "Venus"], "label": ["A", "B"]}}, "no field `choices.text`"),
        ({"choices": {"text": ["Mars", "Question: which planet is red?\nAnswer:"], "label": ["A", "B"]}}, "the prompt"),
        ({"key": "C"}, "the gold 'C' is none of 'A', 'B'"),
        ({"key": 2}, "the gold index 2 is none of 2 choices"),
        ({"key": -1}, "the gold index -1"),
        ({"key": None}, "the gold None is none of"),
        ({"q": None}, "`q` holds null"),
    ],
)
def test_row_that_cannot_be_scored_is_refused_by_its_number(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        built(ARC, [ROW, {**ROW, **changes}])
    assert caught.value.where == "row 1"


def test_field_that_is_not_there_gets_the_nearest_as_a_hint() -> None:
    with pytest.raises(DataError, match="no field `question`") as caught:
        built(form(prompt="{question}"), [{**ROW, "questions": "?"}])
    assert "questions" in caught.value.hint


@pytest.mark.parametrize("template", ["{", "{q!r}", "{q:>5}", "{}", "a } b"])
def test_template_that_is_none_is_refused_when_it_is_made(template: str) -> None:
    with pytest.raises(ConfigurationError, match="is no template"):
        form(prompt=template)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Choices(gold="g"),
        lambda: Choices(gold="g", choices="c", options=("a", "b")),
        lambda: Choices(gold="g", options=("a",)),
        lambda: Choices(gold="g", choices="c", labels="l", names=("A", "B")),
        lambda: Choices(gold="g", choices="c", gould=1),
        lambda: ExactMatch(target="{a}", max_tokens=0),
        lambda: ExactMatch(target="{a}", max_tokens=3, stop=("",)),
    ],
)
def test_answer_that_says_too_little_or_too_much_is_refused_when_it_is_made(wrong: Any) -> None:
    with pytest.raises(ConfigurationError):
        wrong()


def rows(count: int) -> list[dict[str, Any]]:
    return [{**ROW, "q": f"question {number}", "key": "AB"[number % 2]} for number in range(count)]


def test_examples_are_the_same_for_all_items_and_never_the_item_itself() -> None:
    items = built(form(shots=2, seed=3), rows(6))
    for number, item in enumerate(items):
        shown, asked = item.prompt.rsplit("\n\n", 1)
        assert asked == f"Question: question {number}\nAnswer:"
        assert f"question {number}\n" not in shown
        assert shown.count("Answer: Mars") + shown.count("Answer: Venus") == 2
    heads = {item.prompt.rsplit("\n\n", 1)[0] for item in items}
    assert len(heads) == 3  # the two drawn first see the third in their own place


def test_examples_follow_their_seed_and_stand_behind_the_description() -> None:
    own = form(shots=3, description="Choose.")
    prompts = {seed: build_items(form(shots=3, seed=seed), rows(1), rows(30), range(1))[0].prompt for seed in (0, 1)}
    assert prompts[0] != prompts[1]
    assert prompts[0] == build_items(form(shots=3, seed=0), rows(1), rows(30), range(1))[0].prompt
    assert build_items(own, rows(1), rows(30), range(1))[0].prompt == f"Choose.\n\n{prompts[0]}"


def test_examples_more_than_there_are_rows_are_refused() -> None:
    assert built(form(shots=2), rows(3))
    with pytest.raises(DataError, match="3 examples are asked for, and there are 3 rows"):
        built(form(shots=3), rows(3))


def test_targets_are_one_text_or_a_list_of_which_any_will_do() -> None:
    written = ExactMatch(target="{answers}", max_tokens=4)
    (item,) = built(Form(prompt="q", answer=written), [{"answers": ["one", "1"]}])
    assert item.answers == ("one", "1")
    (item,) = built(Form(prompt="q", answer=Continuation(target="{a} end")), [{"a": "x"}])
    assert item.answers == ("x end",)
    for empty in ({"answers": []}, {"answers": [" "]}):
        with pytest.raises(DataError, match="target is empty"):
            built(Form(prompt="q", answer=written), [empty])


def test_ids_that_are_not_unique_are_refused() -> None:
    check_ids(form(id="q"), rows(3))
    with pytest.raises(DataError, match="rows 0 and 1 have the same id"):
        check_ids(form(id="q"), [ROW, ROW])


def pinned(path: Path, data: bytes) -> FileRef:
    path.write_bytes(data)
    return FileRef(path.name, str(path), len(data), blake3(data).hexdigest())


def test_table_of_json_lines_and_parquet_files_is_their_rows(tmp_path: Path) -> None:
    lines = pinned(tmp_path / "a.jsonl", b'\xef\xbb\xbf{"q": "x", "n": 1}\n\n{"q": "y"}\r\n')
    parquet.write_table(pa.table({"q": ["z"], "n": [3]}), tmp_path / "b.parquet")
    other = pinned(tmp_path / "b.parquet", (tmp_path / "b.parquet").read_bytes())
    assert read_table([lines, other]).to_pylist() == [{"q": "x", "n": 1}, {"q": "y", "n": None}, {"q": "z", "n": 3}]


def test_table_of_lines_keeps_fields_that_come_late(tmp_path: Path) -> None:
    late = pinned(tmp_path / "a.jsonl", b'{"q": "x"}\n{"q": "y", "c": ["u", "v"]}\n')
    assert read_table([late]).to_pylist() == [{"q": "x", "c": None}, {"q": "y", "c": ["u", "v"]}]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'{"q": "x"}\n{"q": "caf\xe9"}\n', "not UTF-8"),
        (b'{"q": "x"}\n{"q": ', "no JSON"),
        (b'{"q": "x"}\n[1]\n', "no JSON object"),
        (b'{"q": "x"}\n{"q": 1}\n', "several types"),
        (b'{"q": -1}\n{"q": 18446744073709551615}\n', "several types"),
    ],
)
def test_table_file_that_is_damaged_is_refused_whole(tmp_path: Path, data: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_table([pinned(tmp_path / "a.jsonl", data)])


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_table_file_that_changed_since_the_plan_is_refused(tmp_path: Path, name: str) -> None:
    file = pinned(tmp_path / name, b'{"q": "old"}\n')
    (tmp_path / name).write_bytes(b'{"q": "new"}\n')
    with pytest.raises(InputError, match="input changed during the run"):
        read_table([file])


def test_table_file_that_is_no_parquet_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no readable Parquet"):
        read_table([pinned(tmp_path / "a.parquet", b"PAR1 no")])
