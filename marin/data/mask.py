"""Personal data in texts, replaced by what says what was there.

Patterns are applied one after the other, each to what the ones before it left. Invariant: a text without a match is
not touched, and a document that is left without any character is dropped and counted.
"""

import re
from collections.abc import Iterator, Sequence

from marin.base.json import Json
from marin.data.counts import Counts
from marin.data.documents import Document, read_documents, write_documents
from marin.data.patterns import EMAIL, IPV4, PHONE, Pattern, compiled
from marin.data.samples import Samples
from marin.graph.files import Output, Shard

REPLACED = "replaced.jsonl"

CONTEXT_CHARACTERS = 40

_SIGNS = {
    EMAIL: (re.compile("@"),),
    IPV4: (re.compile(r"[0-9]\.[0-9]{1,3}\.[0-9]"),),
    PHONE: (re.compile(r"\+[0-9]"), re.compile(r"[0-9][0-9][0-9][.-][0-9]{4}")),
}
"""What a text with a match has, one of them: most texts have none, and looking for it is ten times faster."""


def mask_shard(shard: Shard, output: Output, *, patterns: Sequence[Pattern], samples: int) -> Json:
    """Write the documents with every match replaced; returns counts, and `replaced` by pattern.

    A sample of matches with the characters around goes into `replaced.jsonl`.
    """
    result, shown = Counts(), Samples(samples)
    replaced = {pattern.name: 0 for pattern in patterns}

    def masked() -> Iterator[Document]:
        for document in read_documents(shard):
            text = document.text
            for pattern in patterns:
                text, matches = mask_text(text, pattern)
                replaced[pattern.name] += len(matches)
                for match in matches[:1]:
                    around = match.string[max(0, match.start() - CONTEXT_CHARACTERS) : match.end() + CONTEXT_CHARACTERS]
                    shown.offer(pattern.name, document._replace(text=around), match=match.group())
            result.notes["changed"] += text != document.text
            if text:
                result.keep(text)
                yield document._replace(text=text)
            else:
                result.drop("empty")

    write_documents(output, masked())
    shown.write(output, REPLACED)
    return {**result.record(), "replaced": replaced}


def mask_text(text: str, pattern: Pattern) -> tuple[str, list[re.Match[str]]]:
    """Return the text with each match replaced, and the matches."""
    if pattern in _SIGNS and not any(sign.search(text) for sign in _SIGNS[pattern]):
        return text, []
    matches = list(compiled(pattern).finditer(text))
    parts, at = [], 0
    for match in matches:
        parts += [text[at : match.start()], pattern.replacement]
        at = match.end()
    return "".join([*parts, text[at:]]) if matches else text, matches
