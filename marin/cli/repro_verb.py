"""`marin repro`: a folder that makes an artifact again; with --check it is run, and every digest compared."""

import os
from pathlib import Path
from typing import Any

import click
from rich.text import Text

from marin.cli.options import common_options, existing_store, read_from_option, stderr, stdout, write_json
from marin.cli.plan_verb import change_text
from marin.run.repro.check import Outcome, check_inputs, differing_versions, first_difference, rerun
from marin.run.repro.folder import Repro, write_repro
from marin.run.repro.texts import secrets_of
from marin.store import Store
from marin.view.artifacts import find_artifacts

_SHOWN_CHANGES = 4
_SHOWN_VERSIONS = 5

EPILOG = """\b
Examples:
  marin repro export -o paper/export
  marin repro 7f3a12bc --check --backend inline"""


@click.command(epilog=EPILOG)
@click.argument("artifact")
@click.option("-o", "folder", help="Folder to write; ./repro-STEP-FINGERPRINT by itself.", metavar="DIR")
@click.option("--check", is_flag=True, help="Run it with the kept code and compare digests; 1 if its own differs.")
@click.option("--address", default=lambda: os.environ.get("RAY_ADDRESS"), help="Ray cluster for --check.")
@click.option("--backend", type=click.Choice(["ray", "inline"]), default="ray", help="Where --check runs steps.")
@read_from_option
@common_options
def command(
    artifact: str,
    folder: str | None,
    check: bool,
    address: str | None,
    backend: str,
    read_from: tuple[str, ...],
    store: str,
    as_json: bool,
    traceback: bool,
) -> int:
    """Write a folder with the pipeline, code, input pins and versions that make ARTIFACT again."""
    opened = existing_store(store, read_from)
    wanted = find_artifacts(opened, artifact)[0]
    place = Path(folder or f"repro-{wanted.step}-{wanted.fingerprint[:8]}")
    repro = write_repro(opened, wanted, place)
    if not as_json:
        _draw_written(repro)
    outcomes: tuple[Outcome, ...] = ()
    if check:
        check_inputs(repro)
        _draw_versions(repro)
        outcomes = rerun(repro, backend=backend, address=address)
    if as_json:
        write_json(_json(repro, opened, outcomes))
    elif check:
        _draw_outcome(outcomes)
    return int(bool(outcomes) and not outcomes[-1].equal)


def _json(repro: Repro, store: Store, outcomes: tuple[Outcome, ...]) -> dict[str, Any]:
    made = {outcome.step.name: outcome for outcome in outcomes}
    steps = []
    for step in repro.steps:
        record = {"name": step.name, "step": step.manifest.step, "fingerprint": step.manifest.fingerprint}
        again = made.get(step.name)
        rerun_record = {"rerun": again.digest, "equal": again.equal} if again else {}
        steps.append({**record, "digest": step.manifest.digest, **rerun_record})
    return {
        "artifact": store.artifact_url(repro.wanted),
        "folder": str(repro.folder.absolute()),
        "pipeline": repro.pipeline.name,
        "steps": steps,
        "digest": repro.wanted.digest,
        **({"reproduced": outcomes[-1].equal} if outcomes else {}),
    }


def _draw_written(repro: Repro) -> None:
    out = stdout()
    out.print(Text.assemble((str(repro.folder), "bold"), f": {len(repro.steps)} steps in {repro.pipeline.name}"))
    secrets = secrets_of(repro.steps)
    if secrets:
        out.print(f"  set {', '.join(secrets)}: no secret is kept in a store", soft_wrap=True)
    for note in repro.notes:
        stderr().print(Text.assemble(("note:", "yellow"), f" {note}"), soft_wrap=True)


def _draw_versions(repro: Repro) -> None:
    """Say what is installed otherwise than when the artifact was made."""
    constraints = repro.folder / "constraints.txt"
    found = differing_versions(constraints.read_text()) if constraints.exists() else []
    if found:
        more = f" and {len(found) - _SHOWN_VERSIONS} more" if len(found) > _SHOWN_VERSIONS else ""
        text = f" {'; '.join(found[:_SHOWN_VERSIONS])}{more}"
        stderr().print(Text.assemble(("other versions:", "yellow"), text), soft_wrap=True)


def _draw_outcome(outcomes: tuple[Outcome, ...]) -> None:
    out, different = stdout(), first_difference(outcomes)
    wanted = outcomes[-1]
    if wanted.equal:
        text = f" {wanted.step.name} came out the same, digest {wanted.digest[:16]}"
        out.print(Text.assemble(("equal:", "green"), text), soft_wrap=True)
    if different is None:
        return
    made = different.step.manifest
    text = f" {different.step.name} was {made.digest[:16]} and is {different.digest[:16]}"
    where = " on the way:" if wanted.equal else ":"
    out.print(Text.assemble((f"different{where}", "yellow" if wanted.equal else "red"), text), soft_wrap=True)
    for change in different.changes[:_SHOWN_CHANGES]:
        out.print(f"  {change_text(change)}", soft_wrap=True)
    if not different.changes:
        out.print("  from the same recipe: the step is not deterministic, or what is installed differs", soft_wrap=True)
