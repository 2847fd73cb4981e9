"""A lineage made ready to be written as a pipeline: which variable and which name in a plan each step gets.

Pure. Invariant: equal steps are one, as in any plan, and the name of every step in the plan of the written pipeline is
known, so that what a rerun makes can be laid beside what was recorded.
"""

import builtins
import keyword
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from marin import fs
from marin.base.canonical import digest
from marin.base.errors import DataError
from marin.base.json import Json
from marin.graph.resources import Resources
from marin.graph.written import quoted
from marin.store import Manifest

OWN_NAMES = ("Path", "pipeline", "repro", "sys")
"""What the written file uses itself."""
_TAKEN = {*dir(builtins), *keyword.kwlist, *OWN_NAMES}


@dataclass(frozen=True)
class RecordedStep:
    """One step of the written pipeline."""

    manifest: Manifest
    variable: str
    name: str
    """Its name in a plan."""
    named: bool
    """Whether the name has to be given, because the step's own would not be it."""
    parents: Mapping[str, str]
    """Variables by the path of the field that holds them."""

    @property
    def constructor(self) -> Mapping[str, Any]:  # Any: JSON
        """The constructor with the places of inputs made absolute, so that it may be run from anywhere."""
        return absolute(self.manifest)

    @property
    def suffix(self) -> str:
        """What follows the constructor call: `.named(...)` and `.on(...)`."""
        named = f".named({quoted(self.name)})" if self.named else ""
        return named + placed(self.manifest.resources)


def recorded_steps(manifests: Sequence[Manifest]) -> list[RecordedStep]:
    """Return the steps to write for a lineage, parents first; DataError where a record does not say how."""
    without = [each.step for each in manifests if not _is_written_down(each.constructor)]
    if without:
        raise DataError(
            f"{', '.join(dict.fromkeys(without))} was made by a marin that did not record how to write its step again",
            where=f"artifact {manifests[-1].step} {manifests[-1].fingerprint[:8]}",
            hint="its configuration stands in recipe.json (`marin show`); results of this marin can be reproduced",
        )
    steps = _distinct(manifests)
    names = _names([manifest for manifest, _ in steps])
    found: list[RecordedStep] = []
    variables: dict[str, str] = {}
    for (manifest, fingerprints), name in zip(steps, names, strict=True):
        variable = _variable(name, {each.variable for each in found})
        variables.update(dict.fromkeys(fingerprints, variable))
        parents = {parent.path: variables[parent.fingerprint] for parent in manifest.parents}
        found.append(RecordedStep(manifest, variable, name, name != manifest.step, parents))
    return found


def _distinct(manifests: Sequence[Manifest]) -> list[tuple[Manifest, list[str]]]:
    """Return each step once, with the fingerprints of all results that it has had."""
    found: dict[str, tuple[Manifest, list[str]]] = {}
    meant: dict[str, str] = {}
    for manifest in manifests:
        parents = [[parent.path, meant.get(parent.fingerprint)] for parent in manifest.parents]
        key = digest([manifest.constructor, parents])
        meant[manifest.fingerprint] = key
        found.setdefault(key, (manifest, []))[1].append(manifest.fingerprint)
    return list(found.values())


def _names(manifests: Sequence[Manifest]) -> list[str]:
    """Return a name for each, as in the plan that made it where those are different."""
    names: dict[str, None] = {}
    for manifest in manifests:
        wanted = manifest.name or manifest.step
        name, number = wanted, 1
        while name in names:
            number += 1
            name = f"{wanted}-{number}"
        names[name] = None
    return list(names)


def _is_written_down(constructor: Json) -> bool:
    if not isinstance(constructor, Mapping) or not isinstance(constructor.get("class"), str):
        return False
    fields, inputs, placement = (constructor.get(name) for name in ("fields", "inputs", "placement"))
    if not all(isinstance(each, list) for each in (fields, inputs, placement)):
        return False
    pairs = all(isinstance(field, list) and len(field) == 2 for field in fields)  # type: ignore[union-attr]
    return pairs and all(isinstance(pattern, str) for pattern in inputs)  # type: ignore[union-attr]


def _variable(name: str, known: set[str]) -> str:
    """Return an identifier: `tiny/lr=0.001` becomes `tiny_lr_0_001`."""
    plain = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_").lower() or "step"
    plain = f"step_{plain}" if plain[0].isdigit() else plain
    plain = f"{plain}_" if plain in _TAKEN else plain
    found, number = plain, 1
    while found in known:
        number += 1
        found = f"{plain}_{number}"
    return found


def placed(resources: Mapping[str, Json]) -> str:
    """Return `.on(...)` for what is not as usual; empty where all is."""
    usual = Resources().model_dump()
    given = {name: value for name, value in resources.items() if name in usual and value != usual[name]}
    memory: Any = given.pop("memory_bytes", None)
    texts = {name: f"{value:g}" if isinstance(value, float) else repr(value) for name, value in given.items()}
    texts |= {} if memory is None else {"memory": quoted(_size(memory))}
    return f".on({', '.join(f'{name}={text}' for name, text in texts.items())})" if texts else ""


def _size(size_bytes: int) -> str:
    """Return an exact size as a user would write it: `16 GB`."""
    units = ((10**12, "TB"), (2**40, "TiB"), (10**9, "GB"), (2**30, "GiB"), (10**6, "MB"), (2**20, "MiB"), (1, "B"))
    return next(f"{size_bytes // factor} {unit}" for factor, unit in units if size_bytes % factor == 0)


def absolute(manifest: Manifest) -> dict[str, Any]:  # Any: JSON
    """Return the constructor with relative input patterns in its placement fields made absolute."""
    constructor: Any = manifest.constructor
    places, patterns = constructor.get("placement", ()), constructor.get("inputs", ())
    moved = dict(zip(patterns, absolute_patterns(manifest), strict=True))
    fields = [
        [name, moved.get(value, value) if name in places and isinstance(value, str) else value]
        for name, value in constructor["fields"]
    ]
    return {**constructor, "fields": fields}


def absolute_patterns(manifest: Manifest) -> list[str]:
    """Return the patterns of a step's inputs; relative ones begin in the folder where it was run."""
    constructor: Any = manifest.constructor  # Any: JSON
    folder = manifest.producer.folder
    return [
        fs.join(folder, pattern)
        if folder and not pattern.startswith(("!", "/", "~")) and "://" not in pattern
        else pattern
        for pattern in constructor.get("inputs", ())
    ]
