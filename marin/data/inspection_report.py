"""An inspection as a page: Markdown with one picture, which any viewer of Markdown shows.

Pure: text in, text out. Texts of documents stand in fences that they cannot close.
"""

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from marin.base.text import one_line, printable
from marin.data.lengths import octaves
from marin.data.source_counts import OTHER, SOURCES

LISTED_SOURCES = 50
PICTURE = "lengths.svg"

_BAR, _HEIGHT, _LABEL = 44, 160, 34
_STYLE = """text{font:11px sans-serif;fill:#444}rect{fill:#4878a8}
@media(prefers-color-scheme:dark){text{fill:#bbb}rect{fill:#7fb0de}}"""
_TITLES = {
    "documents_in": "read by the step",
    "rows": "rows",
    "num_sequences": "sequences, in order of training",
    "documents": "documents",
    "bytes": "bytes of text",
    "text_bytes": "bytes of text",
    "tokens": "tokens",
    "target_tokens": "tokens with loss",
    "longest": "longest",
}

Record = Mapping[str, Any]  # Any: JSON


def markdown(record: Record) -> str:
    """Return the page of an inspection: what `inspection.json` has, with its samples."""
    unit = record["unit"]
    parts = [
        f"# {one_line(record['type'])}: {record['documents']:,} documents, {record[unit]:,} {unit}",
        _table(("", ""), _numbers(record)),
        f"## Lengths in {unit}",
        f"![histogram of lengths]({PICTURE})" if record["lengths"] else "",
        _table(record["quantiles"], [[f"{value:,}" for value in record["quantiles"].values()]]),
        "## Sources",
        _table(("source", "documents", unit, "share", "mean length"), _sources(record)),
        *_mixture(record),
        *_removed(record),
        *_near(record),
        *_samples(record),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def picture(record: Record) -> str:
    """Return the histogram of lengths as SVG: a bar an octave, as high as its count."""
    bars = octaves(record["lengths"])
    highest = max((count for _, count in bars), default=0)
    width = _BAR * max(4, len(bars))  # the caption needs as much
    drawn = []
    for at, (lowest, count) in enumerate(bars):
        height = 0 if not count else max(1, round(count / highest * (_HEIGHT - 20)))
        x, y = at * _BAR, _HEIGHT - height
        title = f"{lowest:,} to {max(lowest, 2 * lowest - 1):,}: {count:,}"
        drawn.append(
            f'<rect x="{x + 3}" y="{y}" width="{_BAR - 6}" height="{height}"><title>{title}</title></rect>'
            f'<text x="{x + _BAR / 2:g}" y="{y - 4}" text-anchor="middle">{_short(count)}</text>'
            f'<text x="{x + _BAR / 2:g}" y="{_HEIGHT + 14}" text-anchor="middle">{_short(lowest)}</text>'
        )
    unit = html.escape(record["unit"])
    caption = f'<text x="{width / 2:g}" y="{_HEIGHT + 30}" text-anchor="middle">length in {unit}, from</text>'
    size = f'width="{width}" height="{_HEIGHT + _LABEL}" viewBox="0 0 {width} {_HEIGHT + _LABEL}"'
    body = "\n".join([*drawn, caption])
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">\n<style>{_STYLE}</style>\n{body}\n</svg>\n'


def _numbers(record: Record) -> list[list[str]]:
    merged = {**record["record"], **record}
    rows = [[title, f"{merged[name]:,}"] for name, title in _TITLES.items() if name in merged]
    if record.get("text_bytes") and record.get("tokens"):
        rows.append(["bytes a token", f"{record['text_bytes'] / record['tokens']:.2f}"])
    if "duplicates" in record:
        found = record["duplicates"]
        scope = "" if found["one_of"] == 1 else f" among {found['compared']:,} texts, one of {found['one_of']} by hash"
        rows.append([f"exact duplicates{scope}", f"{found['duplicates']:,} in {found['clusters']:,} clusters"])
    return rows


def _sources(record: Record) -> list[list[str]]:
    unit, total = record["unit"], record[record["unit"]] or 1
    ranked = sorted(record[SOURCES].items(), key=lambda item: (-item[1][unit], item[0]))
    shown, rest = ranked[:LISTED_SOURCES], [counts for _, counts in ranked[LISTED_SOURCES:]]
    if OTHER in record:
        rest.append(record[OTHER])
    if rest:
        shown.append(("all others", {name: sum(each[name] for each in rest) for name in ("documents", unit)}))
    return [
        [
            name,
            f"{counts['documents']:,}",
            f"{counts[unit]:,}",
            f"{counts[unit] / total:.2%}",
            f"{counts[unit] / max(1, counts['documents']):,.0f}",
        ]
        for name, counts in shown
    ]


def _mixture(record: Record) -> Iterable[str]:
    """Yield how often a mixture draws from each of its sources."""
    drawn = record.get("mixture")
    if drawn:
        total = sum(each["sequences"] for each in drawn.values()) or 1
        yield "## Mixture"
        yield _table(
            ("source", "sequences", "share", "epochs"),
            [
                [name, f"{each['sequences']:,}", f"{each['sequences'] / total:.2%}", f"{each['epochs']:.3g}"]
                for name, each in sorted(drawn.items())
            ],
        )


def _removed(record: Record) -> Iterable[str]:
    """Yield what the step that made it says of documents that it dropped, noted or put into quarantine."""
    own = record["record"]
    for title, counted in (("Dropped", own.get("dropped")), ("Noted", own.get("notes"))):
        if counted and any(counted.values()):
            yield f"## {title} by the step"
            yield _table(("reason", "documents"), [[name, f"{count:,}"] for name, count in counted.items() if count])
    if record["quarantined"]:
        yield "## Quarantine"
        yield _table(("reason", "lines"), [[name, f"{count:,}"] for name, count in record["quarantined"].items()])
        for line in record["quarantine"]:
            yield f"`{_code(line['path'])}`, line {line['line']}, offset {line['offset']}: {_cell(line['detail'])}"
            yield _fence(line["data"])


def _near(record: Record) -> Iterable[str]:
    """Yield pairs of near duplicates, the least alike first."""
    if "near_duplicates" not in record:
        return
    found = record["near_duplicates"]
    yield "## Near duplicates"
    yield (
        f"{found['duplicates']:,} in {found['clusters']:,} clusters, the largest of {found['largest_cluster']:,}. "
        "Similarity is the share of their shingles that two texts have in common."
    )
    for pair in record["near_pairs"]:
        names = " and ".join(f"`{_code(each['id'])}` of `{_code(each['source'])}`" for each in pair["documents"])
        yield f"similarity {pair['similarity']:.3f}, in a cluster of {pair['cluster']:,}: {names}"
        yield from (_fence(each["text"]) for each in pair["documents"])


def _samples(record: Record) -> Iterable[str]:
    yield "## Samples"
    for sample in record["samples"]:
        where = f"shard {sample['shard']}, row {sample['row']}"
        for document in sample.get("documents", [sample]):
            name = f"`{_code(document['id'])}` of `{_code(document['source'])}`"
            text = document["text"] if "text" in document else "│".join(document["pieces"])
            size = f"{document['characters']:,} characters" if "text" in document else f"{document['tokens']:,} tokens"
            begin = f" from token {document['offset']:,}" if document.get("offset") else ""
            yield f"{where}: {name}, {size}{begin}"
            yield _fence(text)


def _table(heads: Iterable[str], rows: Sequence[Sequence[str]]) -> str:
    heads = list(heads)
    if not heads or not rows:
        return ""
    lines = [heads, ["---"] + ["---:"] * (len(heads) - 1), *([_cell(value) for value in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _fence(text: str) -> str:
    ticks = "```"
    while ticks in text:
        ticks += "`"
    return f"{ticks}text\n{printable(text)}\n{ticks}"


def _cell(text: str) -> str:
    return html.escape(one_line(text), quote=False).replace("|", "\\|").replace("`", "\\`")


def _code(text: str) -> str:
    return one_line(text).replace("`", "'")


def _short(count: int) -> str:
    for limit, unit in ((10**9, "B"), (10**6, "M"), (10**3, "k")):
        if count >= limit:
            return f"{count / limit:.3g}{unit}"
    return str(count)
