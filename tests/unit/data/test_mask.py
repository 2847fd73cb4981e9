"""Personal data: what the built-in patterns find and leave, and which patterns of one's own are refused."""

import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marin import EMAIL, IPV4, PHONE, MarinError, MaskPII, Pattern
from marin.data.documents import read_documents
from marin.data.mask import mask_text

FOUND = {
    EMAIL: [
        "a.b+c@example.co.uk",
        "JOE_1@x-y.org",
        "(me@a.io)",
        "mailto:me@a.io",
        "q@a.b.com",
    ],
    IPV4: ["192.168.0.1", "(8.8.8.8)", "255.255.255.255:80", "at 1.2.3.4."],
    PHONE: ["+49 30 901820", "+1 (415) 555-2671", "+14155552671", "(415) 555-2671", "415-555-2671", "1-415-555-2671"],
}
LEFT = {
    EMAIL: ["a@b", "@handle", "user@", "a@b.c", "x @ y.com", "decorator@property"],
    IPV4: ["1.2.3", "256.1.1.1", "1.2.3.4.5", "1234.5.6.7", "01.2.3.4"],
    PHONE: [
        "4155552671",
        "2024-12-03",
        "1.2.3.4",
        "+1",
        "+100",
        "+100+100",
        "C++ 2024",
        "123-456-7890",
        "3.14159265358",
        "ISBN 978-3-16-148410-0",
        "a+1234567",
    ],
}


@pytest.mark.parametrize(("pattern", "text"), [(pattern, text) for pattern in FOUND for text in FOUND[pattern]])
def test_pattern_finds(pattern: Pattern, text: str):
    masked, matches = mask_text(f"x {text} y", pattern)
    assert len(matches) == 1
    assert pattern.replacement in masked
    assert not any(char.isdigit() or char == "@" for char in masked.replace(":80", ""))


@pytest.mark.parametrize(("pattern", "text"), [(pattern, text) for pattern in LEFT for text in LEFT[pattern]])
def test_pattern_leaves(pattern: Pattern, text: str):
    assert mask_text(f"x {text} y", pattern) == (f"x {text} y", [])


@pytest.mark.parametrize("pattern", [EMAIL, IPV4, PHONE], ids=lambda pattern: pattern.name)
@pytest.mark.parametrize("unit", ["a", "a.", "1", "1.", "+1", "a@", "@a.", "(", "+1(", "1-", "a@a.", "é", "\0"])
def test_pattern_on_a_megabyte_in_one_line_takes_linear_time(pattern: Pattern, unit: str):
    text = (unit * 1_000_000)[:1_000_000]
    begin = time.process_time()
    mask_text(text, pattern)
    assert time.process_time() - begin < 10  # quadratic would be hours


@given(
    text=st.lists(st.sampled_from(["a@b.com", "8.8.8.8", "+1 415 555 2671", "415-555-2671", "\n", "é", "1"])).map(
        " ".join
    )
)
def test_masked_text_has_nothing_left_to_mask(text: str):
    for pattern in (EMAIL, IPV4, PHONE):
        text, _ = mask_text(text, pattern)
        assert mask_text(text, pattern)[1] == []


def test_mask_counts_by_pattern_and_keeps_the_rest(
    corpus: Callable[..., Any], run_step: Callable[..., Any], read_lines: Callable[..., Any]
):
    documents = corpus(
        [("a", "write to a@b.com or c@d.org"), ("b", "שלום \u0301\0 東京"), ("c", "8.8.8.8")],
        [],
        [("d", "ticket T-123")],
    )
    patterns = (EMAIL, IPV4, Pattern(name="ticket", regex=r"T-[0-9]{1,9}", replacement=r"\1<TICKET>"))
    made = run_step(MaskPII(documents=documents, patterns=patterns))
    assert [document.text for shard in made.shards for document in read_documents(shard)] == [
        "write to |||EMAIL_ADDRESS||| or |||EMAIL_ADDRESS|||",
        "שלום \u0301\0 東京",
        "|||IP_ADDRESS|||",
        r"ticket \1<TICKET>",
    ]
    assert made.meta["replaced"] == {"email": 2, "ipv4": 1, "ticket": 1}
    assert made.meta["notes"]["changed"] == 3
    assert {line["match"] for line in read_lines(made, "replaced.jsonl")} == {"a@b.com", "8.8.8.8", "T-123"}
    silent = run_step(MaskPII(documents=documents, patterns=patterns, samples=0))
    assert silent.contents.files == ()


def test_mask_drops_a_document_that_is_emptied_and_fails_when_none_is_left(
    corpus: Callable[..., Any], run_step: Callable[..., Any]
):
    secret = Pattern(name="secret", regex="s{1,9}", replacement="")
    made = run_step(MaskPII(documents=corpus(["sss", "some"]), patterns=[secret]))
    assert made.meta["dropped"] == {"empty": 1}
    with pytest.raises(MarinError, match="no document is left"):
        run_step(MaskPII(documents=corpus(["sss"]), patterns=[secret]))


@pytest.mark.parametrize(
    ("regex", "said"),
    [
        ("(", "does not compile"),
        ("[a-", "does not compile"),
        ("a*", "matches the empty text"),
        (r"\b", "matches the empty text"),
        ("(?=a)", "matches the empty text"),
        ("(a+)+b", "repeats a repeat"),
        ("(a{1,64})+b", "repeats a repeat"),
        ("(a+){1,64}b", "repeats a repeat"),
        ("((a|b)*c?)*x", "repeats a repeat"),
        ("(?:(?=(?:x+)+)y)z", "repeats a repeat"),
    ],
)
def test_pattern_that_cannot_be_is_refused_by_name(regex: str, said: str):
    with pytest.raises(MarinError, match=f"'mine' {said}|{said}") as caught:
        Pattern(name="mine", regex=regex, replacement="")
    assert "mine" in str(caught.value)


def test_mask_with_two_patterns_of_one_name_is_refused(corpus: Callable[..., Any]):
    with pytest.raises(MarinError, match="called `email`"):
        MaskPII(documents=corpus(["a"]), patterns=[EMAIL, EMAIL])
