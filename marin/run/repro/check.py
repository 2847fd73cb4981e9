"""`marin repro --check`: run what was written in a store of its own, and lay each output digest beside the recorded.

The rerun is a process of its own, so that the modules as they were are imported and not those that this process has.
Invariant: inputs are compared before anything runs, and a difference is told at the first step that has one.
"""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marin.base.errors import InputError, StepError
from marin.base.json import Json
from marin.fs.pins import default_memo, pin
from marin.graph.explain import Change, changes
from marin.run.producer import installed
from marin.run.repro.folder import Repro
from marin.run.repro.steps import RecordedStep, absolute_patterns
from marin.store import Store

_NAMED = 5
STORE = "store"


@dataclass(frozen=True)
class Outcome:
    """What a rerun made of one step."""

    step: RecordedStep
    fingerprint: str
    digest: str
    changes: tuple[Change, ...]
    """How its recipe differs from the recorded one; nothing where it is the same."""

    @property
    def equal(self) -> bool:
        """Whether the same bytes came out."""
        return self.digest == self.step.manifest.digest


def check_inputs(repro: Repro) -> None:
    """Raise InputError, naming the files, unless every external input is what it was."""
    for step in repro.steps:
        patterns = absolute_patterns(step.manifest)
        recipe: Any = repro.recipes[step.manifest.fingerprint]  # Any: JSON
        if not patterns or not isinstance(recipe, Mapping):
            continue
        recorded = {path: (size, digest) for path, size, digest in recipe.get("inputs", ())}
        found = {file.path: (file.size, file.digest) for file in pin(patterns, memo=default_memo())}
        differing = [path for path in sorted({*recorded, *found}) if recorded.get(path) != found.get(path)]
        if differing:
            named = ", ".join(f"{path} ({_how(path, recorded, found)})" for path in differing[:_NAMED])
            more = f" and {len(differing) - _NAMED} more" if len(differing) > _NAMED else ""
            raise InputError(
                f"input files of {step.name} are not what they were: {named}{more}",
                where=patterns[0],
                hint="put them back as pins.json has them; without --check the folder is written all the same",
            )


def _how(path: str, recorded: Mapping[str, Any], found: Mapping[str, Any]) -> str:  # Any: (size, digest)
    if path not in found:
        return "gone"
    return "changed" if path in recorded else "new"


def differing_versions(lock: str) -> list[str]:
    """Return what is installed here in another version than then, such as `numpy 2.4.6, here 2.5.0`."""
    here = _versions(installed())
    then = _versions(lock)
    return [f"{name} {then[name]}, here {here.get(name, 'none')}" for name in then if here.get(name) != then[name]]


def _versions(lock: str) -> dict[str, str]:
    return {name: version for name, _, version in (line.partition("==") for line in lock.splitlines()) if version}


def rerun(repro: Repro, *, backend: str, address: str | None) -> tuple[Outcome, ...]:
    """Run the pipeline in `store/` of its folder and return what came of each step.

    What an earlier, interrupted check has made there is kept. Raises StepError when the rerun fails.
    """
    store = repro.folder.absolute() / STORE
    command = [sys.executable, "-P", "-m", "marin", "run", str(repro.pipeline.absolute())]
    command += ["--store", str(store), "--backend", backend, "--on-drift", "warn", "--json"]
    command += ["--address", address] if address else []
    began_in = Path(repro.wanted.producer.folder or "")
    # Where a step reads a relative path, it means the folder in which it was run.
    folder = began_in if began_in.is_absolute() and began_in.is_dir() else repro.folder
    ran = subprocess.run(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, cwd=folder, check=False)
    result = _result(ran.stdout)
    made = {step["name"]: step for step in result.get("steps", ())}
    if not all(made.get(each.name, {}).get("digest") for each in repro.steps):
        raise _failure(result, repro)
    opened = Store.open(str(store), write=False)
    return tuple(_outcome(each, made[each.name], repro.recipes, opened) for each in repro.steps)


def _outcome(
    step: RecordedStep, made: Mapping[str, Any], recipes: Mapping[str, Json], store: Store
) -> Outcome:  # Any: JSON
    old: Any = recipes[step.manifest.fingerprint]
    new: Any = store.recipe(made["step"], made["fingerprint"])
    differs = made["fingerprint"] != step.manifest.fingerprint and old is not None and new is not None
    return Outcome(step, made["fingerprint"], made["digest"], changes(old, new) if differs else ())


def first_difference(outcomes: Sequence[Outcome]) -> Outcome | None:
    """Return the first step, parents first, whose bytes came out different; None where all are equal."""
    return next((outcome for outcome in outcomes if not outcome.equal), None)


def _result(output: bytes) -> dict[str, Any]:  # Any: JSON
    try:
        found = json.loads(output)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _failure(result: Mapping[str, Any], repro: Repro) -> StepError:  # Any: JSON
    failures = [step["error"] for step in result.get("steps", ()) if step.get("error")]
    error = result.get("error") or (failures[0] if failures else {})
    where = str(error.get("where") or repro.pipeline)
    what = error.get("message") or "it ended without a result"
    hint = error.get("hint") or "README.md in the folder says what was not kept; `marin run` shows more"
    return StepError(f"the rerun failed: {what}", where=where, hint=str(hint))
