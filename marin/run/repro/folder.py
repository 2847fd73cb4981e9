"""`marin repro`: a folder with all that makes an artifact again, written from records alone.

Invariant: nothing in the store is run or changed, and the same records give the same folder, byte for byte; a file that
somebody has edited there is never overwritten.
"""

import io
import tokenize
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marin.base.errors import ConfigurationError
from marin.base.json import Json, pretty
from marin.run.repro.lineage import lineage
from marin.run.repro.steps import RecordedStep, absolute_patterns, recorded_steps
from marin.run.repro.texts import pipeline_text, readme_text
from marin.store import Manifest, Store, read_lock
from marin.store.code import read_modules

CODE = "code"
_PIPELINE, _OTHER_PIPELINE = "pipeline.py", "repro_pipeline.py"


@dataclass(frozen=True)
class Repro:
    """A folder that makes an artifact again, and what should come out of it."""

    folder: Path
    pipeline: Path
    steps: tuple[RecordedStep, ...]
    recipes: Mapping[str, Json]
    """By fingerprint; None where the record is gone."""
    notes: tuple[str, ...]
    """What was not kept, or not in one piece."""

    @property
    def wanted(self) -> Manifest:
        """The artifact's record."""
        return self.steps[-1].manifest


@dataclass(frozen=True)
class _Code:
    """First-party modules as they were."""

    texts: Mapping[str, str]
    """By the module's name in the folder."""
    renamed: Mapping[str, str]
    notes: Sequence[str]


def write_repro(store: Store, wanted: Manifest, folder: Path) -> Repro:
    """Write the folder; DataError or StoreError where records do not say enough, ConfigurationError for a used folder.

    A folder that an earlier call wrote for the same artifact is written again.
    """
    steps = recorded_steps(lineage(store, wanted))
    recipes = {each.manifest.fingerprint: store.recipe(each.manifest.step, each.manifest.fingerprint) for each in steps}
    code = _code(store, steps)
    taken = any(module.split(".")[0] == Path(_PIPELINE).stem for module in code.texts)
    pipeline = _OTHER_PIPELINE if taken else _PIPELINE
    pins = [_pins(each, recipes[each.manifest.fingerprint]) for each in steps if each.constructor["inputs"]]
    lock, notes = _lock(store, steps)
    files = {
        pipeline: pipeline_text(steps, store.url, code.texts, code.renamed),
        "recipe.json": pretty({"artifact": wanted.fingerprint, "steps": [_recipe(each, recipes) for each in steps]}),
        "pins.json": pretty({"inputs": pins}),
        "README.md": readme_text(
            steps,
            artifact=store.artifact_url(wanted),
            pipeline=pipeline,
            inputs=sum(len(each["files"]) for each in pins),
            notes=[*code.notes, *notes],
        ),
        **({"constraints.txt": lock} if lock is not None else {}),
    }
    sources = {f"{CODE}/{_file_of(name, code.texts)}": _source_bytes(text) for name, text in code.texts.items()}
    _write(folder, {**{path: text.encode("utf-8", "surrogatepass") for path, text in files.items()}, **sources})
    return Repro(folder, folder / pipeline, tuple(steps), recipes, (*code.notes, *notes))


def _recipe(step: RecordedStep, recipes: Mapping[str, Json]) -> dict[str, Json]:
    made = step.manifest
    return {
        "variable": step.variable,
        "step": made.step,
        "fingerprint": made.fingerprint,
        "digest": made.digest,
        "recipe": recipes[made.fingerprint],
    }


def _pins(step: RecordedStep, recipe: Json) -> dict[str, Any]:  # Any: JSON
    recorded: Any = recipe.get("inputs", []) if isinstance(recipe, Mapping) else []
    files = [{"path": path, "size": size, "digest": digest} for path, size, digest in recorded]
    return {"variable": step.variable, "patterns": absolute_patterns(step.manifest), "files": files}


def _code(store: Store, steps: Sequence[RecordedStep]) -> _Code:
    """Return the modules of all steps; where two steps had different texts of one, that of the later step."""
    found: dict[str, str] = {}
    notes: list[str] = []
    for step in sorted(steps, key=lambda each: each.manifest.finished):
        made = step.manifest
        kept = read_modules(made.root or store.url, made.modules) if made.modules else None
        module = str(step.constructor["class"]).partition(":")[0]
        texts = {name: text for name, text in (kept or {}).items() if _is_module(name)}
        if module.split(".")[0] != "marin" and module not in texts:
            commit = f", or checked out from commit {made.producer.commit}" if made.producer.commit else ""
            notes.append(f"`{module}` of step `{step.variable}` was not kept: it has to be installed{commit}.")
        for name, text in texts.items():
            if found.get(name, text) != text:
                notes.append(
                    f"`{name}` was edited before step `{step.variable}` was made: `{CODE}/` has the later text."
                )
            found[name] = text
    renamed = {"__main__": _free("script", found)} if "__main__" in found else {}
    return _Code({renamed.get(name, name): text for name, text in found.items()}, renamed, notes)


def _is_module(name: str) -> bool:
    return all(part.isidentifier() for part in name.split("."))


def _free(name: str, taken: Mapping[str, str]) -> str:
    number = 1
    while (found := name if number == 1 else f"{name}_{number}") in taken:
        number += 1
    return found


def _file_of(module: str, modules: Mapping[str, str]) -> str:
    path = module.replace(".", "/")
    is_package = any(other.startswith(f"{module}.") for other in modules)
    return f"{path}/__init__.py" if is_package else f"{path}.py"


def _lock(store: Store, steps: Sequence[RecordedStep]) -> tuple[str | None, list[str]]:
    """Return what was installed when the artifact was made, and what to know about the other steps."""
    wanted = steps[-1].manifest
    lock = wanted.producer.lock
    text = read_lock(wanted.root or store.url, lock) if lock else None
    others = [each.variable for each in steps if each.manifest.producer.lock not in (None, lock)]
    notes = (
        [] if text is not None else ["The list of what was installed was not kept, so there is no `constraints.txt`."]
    )
    if others:
        notes.append(f"Other versions were installed when {', '.join(f'`{name}`' for name in others)} was made.")
    return text, notes


def _source_bytes(text: str) -> bytes:
    """Return a module's text in the encoding that it declares itself."""
    plain = text.encode("utf-8", "surrogatepass")
    return text.encode(tokenize.detect_encoding(io.BytesIO(plain).readline)[0], "surrogatepass")


def _write(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files, or refuse a folder in which something else stands."""
    ours = (folder / "recipe.json").is_file() and (folder / "recipe.json").read_bytes() == files["recipe.json"]
    if folder.exists() and (not folder.is_dir() or (any(folder.iterdir()) and not ours)):
        raise ConfigurationError(
            f"{folder} holds something else", where=str(folder.absolute()), hint="choose another folder with -o"
        )
    for path, data in files.items():
        place = folder / path
        if place.exists() and place.read_bytes() != data:
            raise ConfigurationError(
                f"{place} was edited since it was written",
                where=str(place.absolute()),
                hint="delete it to have it written again, or choose another folder with -o",
            )
    for path, data in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
