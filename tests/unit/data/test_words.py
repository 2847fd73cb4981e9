"""Words, shingles and signatures of whole batches: the same as one text alone gives, and as a plain reference."""

import random
import re
from unicodedata import ucd_3_2_0

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin.data.duplicate_rules import MinHash
from marin.data.minhash import EMPTY, sign_texts
from marin.data.words import BLOCK_BYTES, Unit, shingles_of, texts_from, words_of


def is_separator(char: str) -> bool:
    kind = ucd_3_2_0.category(char)
    return not char.isalnum() if char.isascii() else char < "\U00010000" and (kind[0] in "PZ" or kind == "Cc")


# As the module says it: one character from U+3000 to U+9FFF, or a run of others, of what does not separate.
APART = "".join(re.escape(chr(point)) for point in range(0x10000) if is_separator(chr(point)))
WORD = re.compile(f"(?![{APART}])[\u3000-\u9fff]|[^{APART}\u3000-\u9fff]+")
SEPARATORS = re.compile(f"[{APART}]+")
CHARACTER = re.compile(f"{SEPARATORS.pattern}|.", re.DOTALL)

ODD = [
    "Ж",
    "ж",
    "Ạ",
    "ạ",
    "\xa0",
    "«",
    "、",
    "！",
    "İ",
    "",
    "\0",
    "́",
    "é",
    "　",
    "東京は晴れ",
    "שלום עולם",
    "مرحبا",
    "can’t—stop",
    "A-b_c",
    " ",
    "\r\n",
    "9",
    "𝔘x",
    "…",
]

texts = st.lists(st.lists(st.sampled_from([*ODD, "word", "Word", "other "]) | st.text(max_size=4)).map("".join))


def lowered(text: str) -> str:
    """Return a text in small letters, those of other scripts where they have as many bytes."""
    small = [char.lower() if ucd_3_2_0.category(char) == "Lu" and char < "\U00010000" else char for char in text]
    return "".join(new if len(new.encode()) == len(old.encode()) else old for new, old in zip(small, text, strict=True))


def words_in(batch: list[str], unit: Unit) -> list[list[str]]:
    """Return the words as strings, by the bytes that `words_of` gives."""
    column = texts_from(batch)
    found: list[list[str]] = []
    for _, block in column.blocks():
        words = words_of(block, unit)
        strings = [bytes(block.data[begin:end]).decode() for begin, end in zip(words.begins, words.ends, strict=True)]
        found += [strings[words.bounds[at] : words.bounds[at + 1]] for at in range(block.num_texts)]
    return found


@given(batch=texts)
def test_words_of_any_texts_are_those_of_the_definition(batch: list[str]):
    assert words_in(batch, "words") == [WORD.findall(text) for text in batch]
    assert words_in(batch, "characters") == [CHARACTER.findall(text) for text in batch]


@given(batch=texts, n=st.integers(1, 6), unit=st.sampled_from(["words", "characters"]))
def test_shingles_are_equal_exactly_where_the_words_are(batch: list[str], n: int, unit: Unit):
    by_hash: dict[int, set[tuple[str, ...]]] = {}
    by_words: dict[tuple[str, ...], set[int]] = {}
    for _, block in texts_from(batch).blocks():
        shingles = shingles_of(words_of(block, unit), n)
        for value, text, first in zip(*map(np.ndarray.tolist, shingles), strict=True):
            of_text = [lowered(word) for word in words_in(batch, unit)[text]]
            before = sum(len(words) for words in words_in(batch, unit)[:text])
            run = of_text[first - before : first - before + n]
            run = [" " if SEPARATORS.fullmatch(part) else part for part in run]
            by_hash.setdefault(value, set()).add(tuple(run))
            by_words.setdefault(tuple(run), set()).add(value)
    assert all(len(runs) == 1 for runs in by_hash.values())
    assert all(len(values) == 1 for values in by_words.values())


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("ПРИВЕТ, Мир", "«привет» мир"),
        ("a\u00a0b", "A – b"),
        ("日本、東京。", "日本 東京"),
        ("¿QUÉ?", "qué"),
        ("Ạ", "ạ"),
    ],
)
def test_words_of_other_scripts_have_no_case_and_no_punctuation(text: str, same: str):
    found = [words_of(texts_from([each])).hashes.tolist() for each in (text, same)]
    assert found[0] == found[1] != []


@given(batch=texts, n=st.integers(1, 6))
def test_shingles_of_a_batch_are_those_of_each_text_alone(batch: list[str], n: int):
    together: dict[int, list[int]] = {at: [] for at in range(len(batch))}
    for first, block in texts_from(batch).blocks():
        shingles = shingles_of(words_of(block), n)
        for value, text in zip(shingles.hashes.tolist(), shingles.texts.tolist(), strict=True):
            together[first + text].append(value)
    for at, text in enumerate(batch):
        alone = [value for _, block in texts_from([text]).blocks() for value in shingles_of(words_of(block), n).hashes]
        words = len(WORD.findall(text))
        assert together[at] == alone
        assert len(alone) == (max(words - n + 1, min(words, 1)))


@pytest.mark.parametrize("text", ["x" * 1_000_000, "ab " * 400_000, "語" * 400_000, "é" * BLOCK_BYTES])
def test_words_of_a_line_of_a_megabyte_are_its_own_wherever_it_stands(text: str):
    def shingles(batch: list[str]) -> list[int]:
        found = [
            (first + shingle, value)
            for first, block in texts_from(batch).blocks()
            for value, shingle in zip(*shingles_of(words_of(block), 5)[:2], strict=True)
        ]
        return [value for at, value in found if at == batch.index(text)]

    alone = shingles([text])
    assert len(alone) >= 1
    assert shingles(["before and after", text, "then " * 10]) == alone


def jaccard(left: str, right: str, n: int) -> float:
    sets = [
        {tuple(words[at : at + n]) for at in range(max(1, len(words) - n + 1))}
        for words in (left.split(), right.split())
    ]
    return len(sets[0] & sets[1]) / len(sets[0] | sets[1])


@given(seed=st.integers(0, 10**9), length=st.integers(8, 400), changes=st.integers(0, 60))
@settings(max_examples=60, deadline=None)
def test_signature_estimates_jaccard_within_its_standard_error(seed: int, length: int, changes: int):
    rng = random.Random(seed)
    words = [f"w{rng.randrange(10_000)}" for _ in range(length)]
    other = list(words)
    for _ in range(changes):
        other[rng.randrange(length)] = f"v{rng.randrange(10_000)}"
    rule = MinHash(ngram=3, bands=32, rows=32)
    left, right = sign_texts(texts_from([" ".join(words), " ".join(other)]), rule).values
    true = jaccard(" ".join(words), " ".join(other), 3)
    # Filled bins are not independent: with few shingles the error is that of the shingles, not of the bins.
    error = (true * (1 - true) / min(1024, length)) ** 0.5
    assert abs(float((left == right).mean()) - true) <= 5.5 * error + 1e-9


def test_signature_estimates_jaccard_without_bias():
    rng = random.Random(7)
    pairs, truths = [], []
    for _ in range(300):
        words = [f"w{rng.randrange(10_000)}" for _ in range(60)]
        other = words[: rng.randrange(60)] + [f"v{rng.randrange(10_000)}" for _ in range(20)]
        pairs += [" ".join(words), " ".join(other)]
        truths.append(jaccard(pairs[-2], pairs[-1], 3))
    values = sign_texts(texts_from(pairs), MinHash(ngram=3, bands=16, rows=16)).values
    estimates = (values[0::2] == values[1::2]).mean(axis=1)
    assert abs(float((estimates - truths).mean())) < 0.01
    assert float(np.abs(estimates - truths).mean()) < 0.05


def test_signature_of_texts_without_words_says_so_and_others_are_full():
    signed = sign_texts(texts_from(["", " . ", "one", "\0\0", "語"]), MinHash())
    assert signed.any.tolist() == [False, False, True, False, True]
    assert not (signed.values[signed.any] == EMPTY).any()


def test_minhash_for_a_threshold_has_its_half_chance_near_it():
    for threshold in (0.5, 0.7, 0.8, 0.9):
        rule = MinHash.at(threshold, num_hashes=128)
        assert rule.bands * rule.rows <= 128
        assert rule.chance(threshold - 0.15) < 0.3
        assert rule.chance(threshold + 0.1) > 0.8
