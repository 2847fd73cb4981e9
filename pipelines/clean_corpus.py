"""Three kinds of text, cleaned, in a staged mixture to train on; and a table of what each stage removed from each.

    apt-get install doc-rfc-std bible-kjv     # RFCs: Debian's section non-free
    mkdir kjv
    bible -f Gen1:1-Rev22:21 |
        awk '{f = "kjv/" $1; sub(/:.*/, ".txt", f); sub(/^[^ ]* /, ""); print >> f; close(f)}'
    marin run pipelines/clean_corpus.py

The third is the source of your own Python's standard library. Give patterns of your own: `--prose "my/notes/*.txt"`.
Nothing is downloaded; a pattern that matches nothing is an error before anything runs.
"""

import sysconfig
from typing import Annotated

from marin import (
    Annotate,
    AtLeast,
    AtMost,
    Config,
    Context,
    Decontaminate,
    Deduplicate,
    Documents,
    Exact,
    Files,
    Filter,
    Gopher,
    MaskPII,
    MinHash,
    Mix,
    Phase,
    Records,
    Repetition,
    Several,
    Shuffle,
    Step,
    Table,
    Tokenize,
    TrainTokenizer,
    gopher_rules,
    pipeline,
)

STANDARD_LIBRARY = sysconfig.get_path("stdlib") + "/**/*.py"
EXAM = (
    "The LORD is my shepherd; I shall not want. He maketh me to lie down in green pastures: he leadeth me beside the "
    "still waters.",
    "For God so loved the world, that he gave his only begotten Son, that whosoever believeth in him should not perish",
)
"""Texts that a model will be asked about, and must not have read."""


def code_lines(text: str) -> dict[str, float]:
    """Scores of source code: files that are generated, or data, have long lines or few letters."""
    lengths = [len(line) for line in text.split("\n")]
    letters = sum(map(str.isalnum, text))
    return {
        "longest_line": max(lengths),
        "mean_line": sum(lengths) / len(lengths),
        "alphanumeric": letters / max(1, len(text)),
    }


CODE_RULES = (
    AtMost(column="longest_line", value=1000),
    AtMost(column="mean_line", value=100),
    AtLeast(column="alphanumeric", value=0.25),
    AtLeast(column="words", value=20),
)
RFC_RULES = tuple(rule for rule in gopher_rules() if not rule.column.startswith("duplicate_"))
"""The rules for web pages without those on repetition: 132 of 189 RFCs fall for their page headers and tables."""
STAGES = (
    (0.8, {"rfcs": 0.35, "prose": 0.15, "code": 0.5}),
    (0.2, {"rfcs": 0.3, "prose": 0.6, "code": 0.1}),
)
"""Parts of the training and the shares of the sources in each: mostly code first, mostly prose in the end."""
PROSE_RULES = (AtLeast(column="words", value=50), AtMost(column="duplicate_lines", value=0.3))


class Together(Step[Documents]):
    """The documents of several steps, for the one tokenizer of all; no file is copied."""

    parts: Several[Step[Documents]]

    def run(self, ctx: Context) -> Documents:
        """Name the shards of all parts."""
        parts = [ctx.load(part) for part in self.parts]
        meta = {name: sum(part.meta[name] for part in parts) for name in ("documents_out", "bytes")}
        return Documents.write(ctx.output, shards=[shard for part in parts for shard in part.shards], meta=meta)


class Stage(Config):
    """One stage of cleaning one source."""

    source: str
    name: str
    documents: Step[Documents]


class Removed(Step[Table]):
    """A row for each source and stage: documents in and out, megabytes left, and what was dropped for which reason."""

    stages: Several[Stage]

    def run(self, ctx: Context) -> Table:
        """Read the record of each stage."""
        rows = []
        for stage in self.stages:
            record = ctx.load(stage.documents).meta
            dropped = sorted(record["dropped"].items(), key=lambda item: (-item[1], item[0]))
            rows.append(
                {
                    "source": stage.source,
                    "stage": stage.name,
                    "in": record["documents_in"],
                    "out": record["documents_out"],
                    "MB": round(record["bytes"] / 1e6, 3),
                    "removed": ", ".join(f"{reason}: {number}" for reason, number in dropped if number),
                }
            )
        ctx.metric(documents_in=sum(row["in"] for row in rows if row["stage"] == "read"))
        ctx.metric(documents_out=sum(row["out"] for row in rows if row["stage"] == "mask"))
        return Table.write(ctx.output, rows)


def clean(source: str, raw: Step[Documents], rules: tuple[AtLeast | AtMost, ...]) -> list[Stage]:
    """Return the stages of one source, the last one with what is left."""
    once = Deduplicate(documents=raw, method=Exact()).named(f"{source}/exact")
    scores = Annotate(documents=once, scorers=[Gopher(), Repetition(), code_lines]).named(f"{source}/scores")
    good = Filter(documents=once, annotations=[scores], keep=rules).named(f"{source}/filter")
    near = Deduplicate(documents=good, method=MinHash()).named(f"{source}/near")
    fair = Decontaminate(documents=near, against=[Records(texts=EXAM).named("exam")], action="drop").named(
        f"{source}/exam"
    )
    masked = MaskPII(documents=fair).named(f"{source}/mask")
    steps = {"read": raw, "exact": once, "filter": good, "near": near, "exam": fair, "mask": masked}
    return [Stage(source=source, name=name, documents=step) for name, step in steps.items()]


@pipeline
def clean_corpus(
    rfcs: Annotated[str, "pattern of the RFCs as text"] = "/usr/share/doc/RFC/*standard/rfc*.txt.gz",
    prose: Annotated[str, "pattern of the chapters of a book, one document each"] = "kjv/*.txt",
    code: Annotated[str, "pattern of source files"] = STANDARD_LIBRARY,
    vocab_size: Annotated[int, "entries of the tokenizer"] = 8192,
    context: Annotated[int, "tokens a sequence"] = 1024,
    tokens: Annotated[int, "tokens of the mixture"] = 8_000_000,
    seed: Annotated[int, "of the order"] = 0,
):
    """Clean three sources, each by rules of its kind; tokenize, shuffle and mix what is left."""
    sources = {
        "rfcs": (Files(url=rfcs, on_error="skip"), RFC_RULES),
        "prose": (Files(url=prose), PROSE_RULES),
        "code": (
            # a few files of the standard library are deliberately not UTF-8
            Files(url=code, exclude=["site-packages/**", "**/dist-packages/**"], on_error="skip"),
            CODE_RULES,
        ),
    }
    stages = [clean(name, raw.named(f"{name}/read"), rules) for name, (raw, rules) in sources.items()]
    corpus = Together(parts=[of_source[-1].documents for of_source in stages])
    tokenizer = TrainTokenizer(documents=corpus, vocab_size=vocab_size, every=4)
    shuffled = {}
    for of_source in stages:
        last = of_source[-1]
        encoded = Tokenize(documents=last.documents, tokenizer=tokenizer).named(f"{last.source}/tokens")
        shuffled[last.source] = Shuffle(tokens=encoded, context=context, seed=seed).named(f"{last.source}/shuffled")
    phases = [Phase(length=max(1, round(share * tokens)), weights=weights) for share, weights in STAGES]
    data = Mix(sources=shuffled, phases=phases, unit="tokens", exhausted="repeat", seed=seed)
    return [data, Removed(stages=[stage for of_source in stages for stage in of_source])]
