"""Three sources, clean, in a staged mixture: what each stage removes is in the table, and what is absent is named."""

import gzip
import importlib.util
import random
import sys
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import marin
from marin.base.errors import InputError
from marin.data.documents import read_documents

PIPELINE = Path(__file__).parents[2] / "pipelines" / "clean_corpus.py"
WORDS = (
    "the",
    "of",
    "and",
    "to",
    "that",
    "have",
    "with",
    "be",
    "river",
    "stone",
    "window",
    "morning",
    "letter",
    "bread",
)


@pytest.fixture
def pipeline(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("clean_corpus", PIPELINE)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "clean_corpus", module)
    spec.loader.exec_module(module)
    return module


def prose(seed: int, number: int = 120) -> str:
    drawn = random.Random(seed)
    return (
        " ".join(drawn.choice(WORDS) + str(drawn.randrange(50)) * (drawn.random() < 0.1) for _ in range(number)) + "."
    )


@pytest.fixture
def sources(tmp_path: Path) -> dict[str, str]:
    """Patterns of three small sources with something to remove for every stage."""
    for folder in ("rfcs", "prose", "code"):
        (tmp_path / folder).mkdir()
    for number in range(4):
        text = prose(number) + (f" Write to author{number}@example.org." if number == 0 else "")
        (tmp_path / "rfcs" / f"rfc{number}.txt.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "rfcs" / "rfc9.txt.gz").write_bytes(gzip.compress(b"short"))
    for number in range(4):
        (tmp_path / "prose" / f"{number}.txt").write_text(prose(10 + number))
    shepherd = "The LORD is my shepherd; I shall not want. He maketh me to lie down in green pastures: he leadeth me"
    (tmp_path / "prose" / "psalm.txt").write_text(f"{prose(20)} {shepherd} beside the still waters. {prose(21)}")
    for number in range(4):
        body = "\n".join(f"    {word} = {line}  # {prose(line * 7 + number, 6)}" for line, word in enumerate(WORDS))
        (tmp_path / "code" / f"{number}.py").write_text(f"def function_{number}():\n{body}\n")
    same = (tmp_path / "code" / "0.py").read_text()
    (tmp_path / "code" / "same.py").write_text(same)
    (tmp_path / "code" / "near.py").write_text(same + "\n# one more line\n")
    (tmp_path / "code" / "table.py").write_text("data = [" + "1, " * 600 + "]\n")
    (tmp_path / "code" / "latin1.py").write_bytes(b"# caf\xe9\n")
    return {
        "rfcs": f"{tmp_path}/rfcs/*.txt.gz",
        "prose": f"{tmp_path}/prose/*.txt",
        "code": f"{tmp_path}/code/*.py",
    }


def test_clean_corpus_tables_what_each_stage_removed_and_mixes_the_rest(
    pipeline: ModuleType, sources: dict[str, str], tmp_path: Path
) -> None:
    data, removed = pipeline.clean_corpus.build(**sources, vocab_size=300, context=32, tokens=4000)
    rows = marin.run(removed, store=tmp_path / "store", backend="inline").to_rows()
    counts = {(row["source"], row["stage"]): (row["in"], row["out"], row["removed"]) for row in rows}
    assert list(counts)[:6] == [("rfcs", name) for name in ("read", "exact", "filter", "near", "exam", "mask")]
    assert counts["code", "read"] == (8, 7, "invalid_utf8: 1")
    assert counts["code", "exact"] == (7, 6, "duplicate: 1")
    assert counts["rfcs", "filter"] == (5, 4, "words < 50: 1")
    assert counts["code", "filter"] == (6, 5, "longest_line > 1000: 1")
    assert counts["code", "near"] == (5, 4, "duplicate: 1")
    assert counts["prose", "exam"] == (5, 4, "contaminated: 1")
    for before, after in pairwise(rows):
        assert before["source"] != after["source"] or after["in"] == before["out"]
    mixed: Any = marin.run(data, store=tmp_path / "store", backend="inline")
    drawn = {name: counted["sequences"] for name, counted in mixed.meta["sources"].items()}
    assert sum(drawn.values()) * 32 == pytest.approx(4000, rel=0.05)
    assert drawn["code"] / sum(drawn.values()) == pytest.approx(0.8 * 0.5 + 0.2 * 0.1, abs=0.03)
    cleaned = [marin.load(step.tokens.documents, store=tmp_path / "store") for step in data.sources.values()]
    texts = [document.text for part in cleaned for shard in part.shards for document in read_documents(shard)]
    assert len(texts) == 12
    assert not any("@example.org" in text or "shepherd" in text for text in texts)


def test_clean_corpus_without_a_source_names_its_pattern_before_anything_runs(
    pipeline: ModuleType, sources: dict[str, str], tmp_path: Path
) -> None:
    data, _ = pipeline.clean_corpus.build(**{**sources, "rfcs": f"{tmp_path}/none/rfc*.txt.gz"})
    with pytest.raises(InputError, match=r"no file matches '.*/none/rfc"):
        marin.run(data, store=tmp_path / "store", backend="inline")
    assert not list((tmp_path / "store").glob("artifacts/*"))
