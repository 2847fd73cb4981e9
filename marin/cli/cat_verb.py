"""`marin cat`: samples of what an artifact holds, decoded."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from marin.base.errors import ConfigurationError, did_you_mean
from marin.base.lazy import LazyModule
from marin.base.text import one_line, printable
from marin.cli.options import common_options, existing_store, read_from_option, stderr, stdout, write_json
from marin.graph import artifact as kinds
from marin.graph.artifact import Artifact, Scores, Table, Value
from marin.graph.files import FileRef
from marin.store import Manifest, Store
from marin.view.artifacts import artifact_url, find_artifacts

# What is inside an artifact is for the science wing to know: this verb shows what that gives.
look = LazyModule("marin.data.look")

EPILOG = """\b
Examples:
  marin cat tokenize -n 3
  marin cat files --file quarantine.jsonl"""

BORDER = "│"
FILE_BYTES = 100_000_000


@click.command(epilog=EPILOG)
@click.argument("artifact")
@click.option("-n", "number", type=click.IntRange(1, 10_000), default=5, help="How many samples, rows or lines; 5.")
@click.option("--at", type=click.IntRange(min=0), help="Those from this number on, not spread over all.", metavar="N")
@click.option(
    "--length", type=click.IntRange(min=1), default=400, help="Characters or tokens of each; 400.", metavar="N"
)
@click.option("--file", help="Lines of the artifact's or its shards' files of this name.", metavar="NAME")
@read_from_option
@common_options
def command(
    artifact: str,
    number: int,
    at: int | None,
    length: int,
    file: str | None,
    read_from: tuple[str, ...],
    store: str,
    as_json: bool,
    traceback: bool,
) -> None:
    """Show samples of ARTIFACT: documents, tokens with their borders, rows, a table, a value.

    Without --at they are spread evenly over all of it, the same each time. Tokens with loss stand in ⟦ ⟧.
    """
    opened = existing_store(store, read_from)
    manifest, *others = find_artifacts(opened, artifact)
    if others:
        shown = f"{manifest.step} {manifest.fingerprint[:8]}, the newest of {len(others) + 1} results"
        stderr().print(f"{shown}: `marin ls {manifest.step}` lists them", soft_wrap=True)
    held = _open(opened, manifest)
    record: dict[str, Any] = {
        "step": manifest.step,
        "fingerprint": manifest.fingerprint,
        "type": manifest.artifact,
        "artifact": artifact_url(opened, manifest),
    }
    if file is not None:
        record |= {"file": file, "lines": _lines(held, file, number, at or 0)}
    else:
        record |= _content(held, number=number, at=at, length=length)
    if at and _is_past_end(record):
        stderr().print(f"nothing from number {at:,} on: {manifest.step} ends before it", soft_wrap=True)
    if as_json:
        write_json(record)
    else:
        _draw(stdout(), record)


def _is_past_end(record: dict[str, Any]) -> bool:
    return any(name in record and not record[name] for name in ("samples", "rows", "lines"))


def _open(store: Store, manifest: Manifest) -> Artifact:
    """Return the artifact by the type that its record names; a user's own type is one of files."""
    kind = getattr(kinds, manifest.artifact, Artifact)
    is_kind = isinstance(kind, type) and issubclass(kind, Artifact)
    return (kind if is_kind else Artifact).open(store.contents(manifest))


def _content(held: Artifact, *, number: int, at: int | None, length: int) -> dict[str, Any]:
    if look.can_show(held):
        return {"samples": look.samples(held, number=number, at=at, length=length)}
    if isinstance(held, Table):
        rows = held.to_rows()
        shown = json.dumps(rows[at or 0 : (at or 0) + number], default=str)  # dates, bytes
        return {"rows": json.loads(shown), "num_rows": len(rows)}
    if isinstance(held, Value):
        return {"value": held.value}
    if isinstance(held, Scores):
        return {"metrics": held.metrics}
    raise ConfigurationError(
        f"{type(held).__name__} has no samples to show",
        hint="its text files can be shown: " + (", ".join(f"--file {name}" for name in _names(held)) or "it has none"),
    )


def _lines(held: Artifact, name: str, number: int, at: int) -> list[Any]:
    """Return lines of the files of that name, one file after another; those that are JSON are parsed."""
    found: list[str] = []
    for file in _files(held, name):
        if file.size > FILE_BYTES:
            raise ConfigurationError(
                f"`{name}` has {file.size:,} bytes, more than the {FILE_BYTES:,} that are shown",
                where=file.url,
                hint="read it where it is",
            )
        try:
            text = held.contents.reader.read(file).decode()
            found += text.removesuffix("\n").split("\n") if text else []  # not what else Unicode calls a line's end
        except UnicodeDecodeError as error:
            raise ConfigurationError(f"`{name}` is no text", where=file.url, hint="read it where it is") from error
        if len(found) >= at + number:
            break
    lines = found[at : at + number]
    return [_parsed(line) for line in lines] if name.endswith(".jsonl") else lines


def _parsed(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return line


def _files(held: Artifact, name: str) -> Iterator[FileRef]:
    every = [*held.contents.files, *(file for shard in held.shards for file in shard.files)]
    found = [file for file in every if file.path == name]
    if not found:
        names = sorted({file.path for file in every})
        hint = did_you_mean(name, names) or f"there are {', '.join(names[:10])}"
        raise ConfigurationError(f"no file of this artifact is called {name!r}", hint=hint)
    yield from found


def _names(held: Artifact) -> list[str]:
    texts = (".json", ".jsonl", ".md", ".txt", ".jinja", ".svg")
    return [file.path for file in held.contents.files if file.path.endswith(texts)][:10]


def _draw(out: Console, record: Mapping[str, Any]) -> None:
    for sample in record.get("samples", ()):
        for line in _sample(sample):
            out.print(line, soft_wrap=True)
    for line in record.get("lines", ()):
        shown = line if isinstance(line, str) else json.dumps(line, ensure_ascii=False)
        out.print(printable(shown), soft_wrap=True)
    for row in record.get("rows", ()):
        out.print(printable(json.dumps(row, ensure_ascii=False)), soft_wrap=True)
    if "value" in record:
        out.print(printable(json.dumps(record["value"], ensure_ascii=False, indent=1)), soft_wrap=True)
    for name, number in record.get("metrics", {}).items():
        out.print(f"{printable(name)}  {number:.6g}", soft_wrap=True)


def _sample(sample: Mapping[str, Any]) -> Iterator[Text]:
    """Yield the lines of a sample: where it stands, then each document's name and text."""
    number = f"sequence {sample['sequence']:,}, " if "sequence" in sample else ""
    where = f"{number}shard {sample['shard']}, row {sample['row']}"
    if "documents" in sample:
        padding = f", {sample['padding']:,} of them padding" if sample["padding"] else ""
        documents = "1 document" if len(sample["documents"]) == 1 else f"{len(sample['documents'])} documents"
        yield Text(f"{where}: {documents}, {sample['tokens']:,} {sample['unit']}{padding}", "bold")
    for document in sample.get("documents", [sample]):
        size = f"{document['characters']:,} characters" if "text" in document else f"{document['tokens']:,} tokens"
        begin = f" from token {document['offset']:,}" if document.get("offset") else ""
        name = f"{one_line(document['id'])} of {one_line(document['source'])}, {size}{begin}"
        is_row = "documents" in sample
        yield Text(f"  {name}" if is_row else f"{where}: {name}", "" if is_row else "bold")
        if document.get("meta"):
            yield Text(f"  {one_line(json.dumps(document['meta'], ensure_ascii=False))}", "dim")
        shown = Text(printable(document["text"])) if "text" in document else _pieces(document)
        yield from (Text("  ").append_text(line) for line in shown.split("\n", allow_blank=True))
    yield Text("")


def _pieces(document: Mapping[str, Any]) -> Text:
    """Return tokens with a border between each two, those with loss in brackets where not all have it."""
    targets: Sequence[bool] = document.get("targets") or [False] * len(document["pieces"])
    shown, before = Text(), False
    for at, (piece, is_target) in enumerate(zip(document["pieces"], targets, strict=True)):
        if is_target != before:
            shown.append("⟦" if is_target else "⟧", "cyan")
        elif at:
            shown.append(BORDER, "cyan")
        shown.append(printable(piece), "bold" if is_target else "")
        before = is_target
    if before:
        shown.append("⟧", "cyan")
    return shown
