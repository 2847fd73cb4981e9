"""Inspect and the samples that `marin cat` shows: numbers that add up, and texts as they are in the artifact."""

import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import marin
from marin.base.errors import ConfigurationError
from marin.data.inspection import hash_one_of, inspect_documents, summary
from marin.data.lengths import histogram, octaves, quantiles
from marin.data.loader import IGNORED, SequenceData
from marin.data.look import evenly, samples, spread
from marin.graph.files import Shard

EOS = "<|endoftext|>"
TEXTS = [
    "the cat and the hat",
    "été 👩‍👩‍👧",
    "the cat and the hat",
    "x" * 50,
    "```\n| a | [x](y) |\n```",
    "the cat and the hat",
]

RunStep = Callable[[marin.Step[Any]], Any]
Corpus = Callable[..., marin.Step[marin.Documents]]


@pytest.fixture
def named(corpus: Corpus) -> marin.Step[marin.Documents]:
    """Two shards from two sources."""
    rows = [(str(at), text, f"{'web' if at < 4 else 'books'}/{at}.txt") for at, text in enumerate(TEXTS)]
    return corpus(rows[:3], rows[3:])


def tokens_of(documents: marin.Step[marin.Documents]) -> marin.Tokenize:
    trained = marin.TrainTokenizer(documents=documents, vocab_size=265)
    return marin.Tokenize(documents=documents, tokenizer=trained)


def inspected(run_step: RunStep, step: marin.Inspect) -> tuple[dict[str, Any], str]:
    folder = run_step(step)
    ElementTree.fromstring(folder.read("lengths.svg"))
    return json.loads(folder.read("inspection.json")), folder.read("report.md").decode()


def test_inspect_documents_counts_sources_lengths_and_duplicates(run_step: RunStep, named: Any) -> None:
    record, report = inspected(run_step, marin.Inspect(data=named, length=20))
    sizes = [len(text.encode()) for text in TEXTS]
    assert (record["documents"], record["bytes"], record["longest"]) == (6, sum(sizes), max(sizes))
    assert record["sources"] == {
        "books": {"documents": 2, "bytes": sum(sizes[4:])},
        "web": {"documents": 4, "bytes": sum(sizes[:4])},
    }
    duplicates = {"compared": 6, "one_of": 1, "duplicates": 2, "clusters": 1, "largest_cluster": 3}
    assert record["duplicates"] == duplicates
    assert sorted(sample["text"] for sample in record["samples"]) == sorted(text[:20] for text in TEXTS)
    assert f"| web | 4 | {sum(sizes[:4])} |" in report
    assert "2 in 1 clusters" in report
    assert f"````text\n{TEXTS[4][:20]}\n````" in report  # a text does not close its fence


def test_inspect_is_the_same_however_documents_lie_in_shards(run_step: RunStep, corpus: Corpus) -> None:
    rows = [(str(at), text) for at, text in enumerate(TEXTS)]
    one, many = (
        run_step(marin.Inspect(data=corpus(*groups), samples=0)) for groups in ([rows], [[row] for row in rows])
    )
    assert [file.digest for file in one.contents.files] == [file.digest for file in many.contents.files]


def test_inspect_shows_pairs_of_near_duplicates_with_their_similarity(run_step: RunStep, corpus: Corpus) -> None:
    words = [f"word{number}" for number in range(60)]
    other = " ".join([*words[:59], "changed"])
    rows = [("b", other), ("a", " ".join(words)), ("c", " ".join(reversed(words))), ("d", " ".join(words))]
    step = marin.Inspect(data=corpus(rows[:1], rows[1:]), near=marin.MinHash(bands=40, rows=3))
    record, report = inspected(run_step, step)
    assert record["near_duplicates"] == {"duplicates": 2, "clusters": 1, "largest_cluster": 3}
    found = {frozenset(each["id"] for each in pair["documents"]): pair for pair in record["near_pairs"]}
    assert [pair["cluster"] for pair in record["near_pairs"]] == [3, 3]
    for names, pair in found.items():  # 56 shingles of five words, of which the last one differs
        assert pair["similarity"] == (1.0 if names == {"a", "d"} else round(55 / 57, 3))
    assert "similarity 0.965, in a cluster of 3: " in report
    assert f"```text\n{other[:300]}\n```" in report[report.index("## Near duplicates") : report.index("## Samples")]
    with pytest.raises(ConfigurationError, match=r"`Inspect\.near` compares texts"):
        marin.Inspect(data=tokens_of(step.data), near=marin.MinHash())


def test_inspect_tokens_has_the_numbers_of_its_input(run_step: RunStep, named: Any) -> None:
    step = tokens_of(named)
    tokens, (record, report) = run_step(step), inspected(run_step, marin.Inspect(data=step))
    assert record["sources"] == tokens.meta["sources"]
    assert (record["tokens"], record["text_bytes"]) == (tokens.meta["tokens"], tokens.meta["bytes"])
    assert sum(record["lengths"].values()) == record["documents"] == 6
    assert "bytes a token" in report
    assert "target_tokens" not in record


def test_inspect_sequences_has_the_mixture_that_is_trained_on(run_step: RunStep, named: Any) -> None:
    record, _ = inspected(run_step, marin.Inspect(data=marin.Shuffle(tokens=tokens_of(named), context=8, seed=0)))
    whole = run_step(tokens_of(named)).meta["tokens"]
    rows = record["rows"]
    assert record["tokens"] == whole + rows - 1  # a row's last token is the first of the next one
    assert sum(counts["tokens"] for counts in record["sources"].values()) == record["tokens"]
    assert record["samples"][0]["tokens"] == 9


def test_samples_of_a_mixture_of_cut_and_packed_rows_are_what_training_reads(run_step: RunStep, named: Any) -> None:
    tokens = tokens_of(named)
    sources = {
        "cut": marin.Shuffle(tokens=tokens, context=8, seed=0),
        "packed": marin.Pack(tokens=tokens, context=8, seed=0, method="best_fit"),
    }
    phase = marin.Phase(length=24, weights={"cut": 0.5, "packed": 0.5})
    step = marin.Mix(sources=sources, phases=[phase], exhausted="repeat", seed=0)
    mixed = run_step(step)
    batch = SequenceData(mixed.shards, 8).batch(np.arange(24))
    found = samples(mixed, number=30, at=0, length=100)
    assert [each["sequence"] for each in found] == list(range(24))
    for each, read, targets in zip(found, batch.tokens, batch.targets, strict=True):
        is_packed = each["tokens"] == 8
        ids = [n for part in each["documents"] for n in (part["ids"][:-1] if is_packed else part["ids"])]
        assert ids[:8] == read.tolist()[: len(ids)]
        assert each["padding"] == (targets == IGNORED).sum()
        assert sum(part["tokens"] - is_packed for part in each["documents"]) + each["padding"] == each["tokens"]
    record, report = inspected(run_step, marin.Inspect(data=step))
    assert record["mixture"]["cut"]["sequences"] == record["mixture"]["packed"]["sequences"] == 12
    assert record["record"]["num_sequences"] == 24
    assert "| cut | 12 | 50.00% |" in report


def test_inspect_shows_dropped_noted_and_quarantined_lines(run_step: RunStep, tmp_path: Path) -> None:
    lines = ['{"text": "good\\r\\n"}', "{", '{"text": ""}', '{"txt": "`|<b>"}']
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    files = marin.Files(url=str(tmp_path / "a.jsonl"), text="text", on_error="quarantine")
    record, report = inspected(run_step, marin.Inspect(data=files))
    assert record["quarantined"] == {"invalid_json": 1, "missing_text": 1}
    assert record["record"]["dropped"] == {"empty": 1, "invalid_json": 1, "missing_text": 1}
    assert [line["line"] for line in record["quarantine"]] == [2, 4]
    assert "| missing_text | 1 |" in report
    assert "with_crlf" in report


def test_inspect_of_chat_counts_and_shows_targets(run_step: RunStep, named: Any) -> None:
    talk = json.dumps({"messages": [{"role": "user", "content": "the cat"}, {"role": "assistant", "content": "hat"}]})
    trained = marin.TrainTokenizer(documents=named, vocab_size=265)
    template = "{% for m in messages %}{{ m.content }}\n{% endfor %}"
    chat = marin.Chat(documents=marin.Records(texts=[talk]), tokenizer=trained, template=template)
    record, _ = inspected(run_step, marin.Inspect(data=chat))
    (sample,) = record["samples"]
    pairs = zip(sample["pieces"], sample["targets"], strict=True)
    assert "".join(text for text, is_target in pairs if is_target) == "hat\n"
    assert record["target_tokens"] == sum(sample["targets"])


def test_inspect_of_a_tokenizer_fails_when_it_is_made(named: Any) -> None:
    with pytest.raises(ConfigurationError, match="expects Documents, Tokens or Sequences"):
        marin.Inspect(data=marin.Annotate(documents=named, scorers=[marin.Gopher()]))


def test_duplicates_among_a_part_of_the_hashes_are_whole_clusters(
    run_shards: Callable[..., list[Shard]], documents: Callable[..., list[Shard]]
) -> None:
    texts = [f"text {number}" for number in range(200)]
    shards = documents(texts, texts, texts[:100])
    made = run_shards(inspect_documents, shards, one_of=4)
    found = summary([shard.value for shard in made], made, {}, one_of=4)["duplicates"]
    assert 20 < found["clusters"] < 80
    assert found["clusters"] * 2 <= found["compared"] <= found["clusters"] * 3
    assert found["duplicates"] == found["compared"] - found["clusters"]
    assert [hash_one_of(number) for number in (0, 1, 2**23, 2**23 + 1, 2**25)] == [1, 1, 1, 2, 4]


@given(st.lists(st.integers(0, 2**40), max_size=60), st.integers(0, 60))
def test_histogram_of_parts_adds_up_and_bounds_every_quantile(lengths: list[int], cut: int) -> None:
    whole = histogram(np.array(lengths, np.int64))
    parts = [histogram(np.array(part, np.int64)) for part in (lengths[:cut], lengths[cut:])]
    assert Counter(parts[0]) + Counter(parts[1]) == Counter(whole)
    assert sum(count for _, count in octaves(whole)) == len(lengths)
    for name, bound in quantiles(whole).items():
        at = max(1, -(-len(lengths) * round(float(name[1:])) // 100))
        exact = sorted(lengths)[at - 1]
        assert exact <= bound <= exact * 1.125


@given(num_shards=st.integers(1, 50), number=st.integers(0, 200), rows=st.integers(0, 50))
def test_samples_are_spread_over_shards_and_rows(num_shards: int, number: int, rows: int) -> None:
    quotas = spread(num_shards, number)
    assert sum(quotas) == number
    assert max(quotas) - min(quotas) <= 1
    chosen = evenly(rows, max(1, number))
    assert len(chosen) == len(set(chosen)) == min(rows, max(1, number))
    assert all(0 <= row < rows for row in chosen)


def test_samples_from_a_number_on_follow_each_other_over_shards(run_step: RunStep, named: Any) -> None:
    artifact = run_step(named)
    found = samples(artifact, number=3, at=2, length=100)
    assert [(each["shard"], each["row"], each["text"]) for each in found] == [
        (0, 2, TEXTS[2]),
        (1, 0, TEXTS[3]),
        (1, 1, TEXTS[4]),
    ]
    assert samples(artifact, number=3, at=6, length=100) == []


def test_samples_of_tokens_are_pieces_of_the_text_with_broken_characters_written_out(
    run_step: RunStep, named: Any
) -> None:
    found = samples(run_step(tokens_of(named)), number=6, at=0, length=1000)
    assert "".join(found[0]["pieces"]) == TEXTS[0] + EOS
    spelt = "".join(found[1]["pieces"]).encode()
    assert b"\\xf0" in spelt
    written = re.sub(rb"\\x([0-9a-f]{2})", lambda match: bytes.fromhex(match[1].decode()), spelt)
    assert written.decode() == TEXTS[1] + EOS
    assert [each["tokens"] for each in found] == [len(each["ids"]) for each in found]
