"""Decontamination: what documents and evaluation texts share, to the character."""

import random
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin import Decontaminate, Documents, MarinError, fs
from marin.data.decontaminate import decontaminate_shard, index_input, index_ngrams, read_spans
from marin.data.documents import Document, read_documents, write_documents
from marin.data.hashes import bundle

QUESTION = "Which of the following planets, known for its rings, is the sixth from the Sun in our own system?"
LOUD = QUESTION.upper().replace(",", " --").replace("?", "")


def filler(seed: int, length: int = 60) -> str:
    return " ".join(f"w{random.Random(seed * 1000 + at).randrange(10**6)}" for at in range(length))


def texts(documents: Documents) -> dict[str, str]:
    return {document.id: document.text for shard in documents.shards for document in read_documents(shard)}


@pytest.fixture
def dirty(corpus: Callable[..., Any]) -> Any:
    return corpus(
        [("clean", filler(1)), ("first", f"{LOUD} {filler(2)}"), ("middle", f"é語 {filler(3)} {LOUD}! {filler(4)}")],
        [],
        [("part", f"{filler(5)} {' '.join(QUESTION.split()[:12])} {filler(6)}"), ("only", QUESTION)],
    )


def test_decontaminate_report_gives_characters_and_evaluation_text(
    corpus: Callable[..., Any], run_step: Callable[..., Any], read_lines: Callable[..., Any], dirty: Any
):
    against = [corpus([("other", filler(9))]), corpus([("q1", QUESTION, "exam")])]
    made = run_step(Decontaminate(documents=dirty, against=against, action="report"))
    assert list(texts(made)) == ["clean", "first", "middle", "part", "only"]
    spans = read_spans(made.shards)
    assert [span["id"] for span in spans] == ["first", "middle", "only"]
    assert {(span["evaluation_id"], span["evaluation_source"]) for span in spans} == {("q1", "exam")}
    whole = texts(made)
    assert whole["middle"][spans[1]["start"] : spans[1]["end"]] == LOUD
    assert whole["only"][spans[2]["start"] : spans[2]["end"]] == QUESTION.rstrip("?")
    assert made.meta["contaminated"] == {"exam": 3}
    assert made.meta["notes"]["contaminated"] == made.meta["spans"] == 3
    assert made.meta["evaluation"]["texts"] == 2
    assert {line["id"] for line in read_lines(made, "contaminated.jsonl")} == {"first", "middle", "only"}


def test_decontaminate_drop_leaves_the_others(corpus: Callable[..., Any], run_step: Callable[..., Any], dirty: Any):
    made = run_step(Decontaminate(documents=dirty, against=[corpus([QUESTION])], action="drop"))
    assert list(texts(made)) == ["clean", "part"]
    assert made.meta["dropped"] == {"contaminated": 3}
    assert made.meta["documents_in"] == 5


def test_decontaminate_mask_replaces_spans_and_drops_what_is_emptied(
    corpus: Callable[..., Any], run_step: Callable[..., Any]
):
    documents = corpus([("only", QUESTION.rstrip("?")), ("middle", f"é語 {filler(3)} {LOUD}! {filler(4)}")])
    step = Decontaminate(documents=documents, against=[corpus([QUESTION])], action="mask", mask="")
    made = run_step(step)
    assert texts(made) == {"middle": f"é語 {filler(3)} ! {filler(4)}"}
    assert made.meta["dropped"] == {"empty": 1}


def test_decontaminate_finds_short_texts_whole_and_counts_those_too_short(
    corpus: Callable[..., Any], run_step: Callable[..., Any]
):
    short = "what is the capital of the old empire"  # eight words
    documents = corpus([("has", f"so: What is, the capital of the old Empire? {filler(1)}"), ("not", filler(2))])
    against = [corpus([short, "two words", "", "\0"])]
    made = run_step(Decontaminate(documents=documents, against=against, action="drop"))
    assert list(texts(made)) == ["not"]
    assert made.meta["evaluation"] == {"texts": 4, "too_short": 3, "ngrams": 1}
    longer = run_step(Decontaminate(documents=documents, against=against, action="drop", shortest=9))
    assert list(texts(longer)) == ["has", "not"]


def test_decontaminate_of_odd_texts(corpus: Callable[..., Any], run_step: Callable[..., Any]):
    chinese = "下列哪一颗行星以其光环而闻名并且是第六颗行星"
    hebrew = " ".join(f"מילה{number}" for number in range(14))
    group = [("han", f"前言。{chinese}！后面"), ("rtl", f"{hebrew}\0"), ("mark", "\u0301"), ("line", "x" * 1_000_000)]
    made = run_step(Decontaminate(documents=corpus(group), against=[corpus([chinese, hebrew])], action="report"))
    whole = texts(made)
    found = {span["id"]: whole[span["id"]][span["start"] : span["end"]] for span in read_spans(made.shards)}
    assert found == {"han": chinese, "rtl": hebrew}


def test_decontaminate_that_leaves_nothing_fails(corpus: Callable[..., Any], run_step: Callable[..., Any]):
    with pytest.raises(MarinError, match=r"no document is left of 1 \(1 contaminated\)"):
        run_step(Decontaminate(documents=corpus([QUESTION]), against=[corpus([QUESTION])], action="drop"))


def test_decontaminate_without_any_evaluation_words_finds_nothing(
    corpus: Callable[..., Any], run_step: Callable[..., Any]
):
    made = run_step(Decontaminate(documents=corpus([QUESTION]), against=[corpus(["", "."])], action="drop"))
    assert made.meta["documents_out"] == 1


words = st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=30)


@settings(max_examples=40, deadline=None)
@given(document=words, evaluations=st.lists(words, min_size=1, max_size=3), n=st.integers(1, 4))
def test_spans_are_the_words_that_a_shared_ngram_covers(document: list[str], evaluations: list[list[str]], n: int):
    spans = spans_by_index(" ".join(document), [" ".join(text) for text in evaluations], n)
    shared = {tuple(text[at : at + n]) for text in evaluations for at in range(len(text) - n + 1)}
    covered = {
        at + step for at in range(len(document) - n + 1) if tuple(document[at : at + n]) in shared for step in range(n)
    }
    assert {at // 2 for start, end in spans for at in range(start, end, 2)} == covered


def spans_by_index(document: str, evaluations: list[str], n: int) -> list[tuple[int, int]]:
    """Run the shard functions in memory; `shortest` is n, so that shorter texts are left out."""
    folder = f"memory://decontaminate/{uuid4().hex}"
    outputs = {name: fs.FolderOutput(f"{folder}/{name}") for name in ("document", "evaluation", "index", "result")}
    write_documents(outputs["document"], [Document("0", document, "test")])
    write_documents(outputs["evaluation"], [Document(str(at), text, "test") for at, text in enumerate(evaluations)])
    source = index_input([[bundle(outputs["evaluation"].files)]])
    index_ngrams(source, outputs["index"], ngram=n, shortest=n)
    index = bundle(outputs["index"].files)
    decontaminate_shard(
        bundle(outputs["document"].files),
        outputs["result"],
        ngrams=index.file("ngrams.npy"),
        evaluation=index.file("evaluation.parquet"),
        action="report",
        mask="",
        samples=0,
    )
    spans = read_spans([bundle(outputs["result"].files)])
    fs.delete_folder(folder)
    return [(span["start"], span["end"]) for span in spans]
