"""The texts that `marin repro` writes: the pipeline, and the page that says what made it and how to run it.

Pure. Equal lineages give equal texts: nothing of the moment stands in them.
"""

from collections.abc import Collection, Mapping, Sequence

from marin.base.units import format_seconds, format_size
from marin.graph.constructor import secret_places
from marin.graph.written import Imports, Writer, secret_variable
from marin.run.repro.steps import RecordedStep
from marin.store import Manifest


def pipeline_text(
    steps: Sequence[RecordedStep], store: str, modules: Collection[str], renamed: Mapping[str, str]
) -> str:
    """Return the pipeline; `modules` lie in `code/`, some under another name. DataError for what cannot be written."""
    wanted = steps[-1].manifest
    title = _quotable(f"{wanted.step} {wanted.fingerprint[:8]}")
    imports = Imports({*(step.variable for step in steps), "repro", *(("Path", "sys") if modules else ())}, renamed)
    imports.name("marin:pipeline")
    body = [_assignment(step, imports) for step in steps]
    tops = {module.split(".")[0] for module in modules}
    libraries: list[str] = []
    own: list[str] = []
    for module, statement in imports.statements().items():
        (own if module.split(".")[0] in tops else libraries).append(statement)
    lines = [
        f'"""Makes {title} again, from the records of {_quotable(store)}.',
        "",
        "Written by `marin repro`; README.md says how to run it.",
        '"""',
        "",
        *(["import sys", "from pathlib import Path", ""] if modules else []),
        *libraries,
    ]
    if modules:
        lines += ["", 'sys.path.insert(0, str(Path(__file__).parent / "code"))  # the source as it was', *own]
    lines += ["", "", "@pipeline", "def repro():", f'    """What made {title}."""', *body]
    return "\n".join([*lines, f"    return [{steps[-1].variable}]", ""])


def _quotable(text: str) -> str:
    """Return a text that can stand in a docstring."""
    return "".join("'" if letter in '"\\' else letter for letter in text)


def _assignment(step: RecordedStep, imports: Imports) -> str:
    writer = Writer(imports, step.parents.__getitem__)
    before = f"{step.variable} = "
    return f"    {before}{writer.step(step.constructor, step.suffix, 1, len(before))}"


def secrets_of(steps: Sequence[RecordedStep]) -> list[str]:
    """Return the environment variables that the pipeline reads secrets from."""
    found = [secret_variable(path) for step in steps for path, _ in secret_places(step.constructor["fields"])]
    return list(dict.fromkeys(found))


def readme_text(
    steps: Sequence[RecordedStep], *, artifact: str, pipeline: str, inputs: int, notes: Sequence[str]
) -> str:
    """Return the page: what was made, by whom, from which commit, how to make it again, and what was not kept."""
    wanted = steps[-1].manifest
    by = wanted.producer
    secrets = secrets_of(steps)
    export = "".join(f"export {name}=...\n" for name in secrets)
    lines = [
        f"# {wanted.step} {wanted.fingerprint[:8]}, to be made again",
        "",
        f"Written by `marin repro` from `{artifact}`.",
        "",
        f"- **Artifact**: {wanted.artifact}, {format_size(wanted.size)}",
        f"- **Output digest**: `{wanted.digest}`",
        f"- **Made**: {wanted.finished} by {by.user}@{by.host} in {format_seconds(wanted.seconds)}, run `{wanted.run}`",
        f"- **Source**: {_source(wanted)}",
        f"- **Installed**: {', '.join(f'{name} {version}' for name, version in by.versions.items())}; "
        + ("all of it in `constraints.txt`" if by.lock else "the whole list was not kept"),
        "",
        "## Make it again",
        "",
        "```bash",
        f"{export}marin run {pipeline} --store ./store",
        f"marin show {wanted.step} --store ./store",
        "```",
        "",
        "The output digest that `marin show` prints is then the one above. `marin repro --check` does both, and names",
        "the first step that comes out different. `pip install --constraint constraints.txt ...` brings back the",
        "versions. What runs is the code in `code/`, as the store kept it: read it first if others write there.",
        "",
        f"## Steps ({len(steps)})",
        "",
        "| Variable | Step | Fingerprint | Output digest | Made | Source |",
        "|---|---|---|---|---|---|",
        *(_row(step) for step in steps),
        "",
        "## Inputs",
        "",
        f"{inputs} files from outside; `pins.json` has the path, size and digest of each." if inputs else "None.",
    ]
    if notes:
        lines += ["", "## What to know", "", *(f"- {note}" for note in notes)]
    return "\n".join([*lines, ""])


def _row(step: RecordedStep) -> str:
    made = step.manifest
    cells = [step.variable, made.step, made.fingerprint[:16], made.digest[:16], made.finished, _source(made)]
    return f"| {' | '.join(cell.replace('|', ' ') for cell in cells)} |"


def _source(made: Manifest) -> str:
    if made.producer.commit is None:
        return "no git repository"
    changed = f" with changes (diff {(made.producer.diff or 'unknown')[:8]})" if made.producer.dirty else ""
    return f"commit {made.producer.commit[:12]}{changed}"
