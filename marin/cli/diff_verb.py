"""`marin diff`: what differs between two results of one step, down to the first causes."""

from collections.abc import Mapping
from typing import Any

import click
from rich.text import Text

from marin.base.errors import ConfigurationError
from marin.cli.options import common_options, existing_store, read_from_option, stdout, write_json
from marin.cli.why_verb import draw_changes
from marin.store import Manifest, Store
from marin.view.artifacts import artifact_url, find_artifacts
from marin.view.causes import Causes, Key

EPILOG = """\b
Examples:
  marin diff 7f3a12bc 90be0a44
  marin diff train/lr=0.001 train/lr=0.003 --json"""

_LISTED = 6


@click.command(epilog=EPILOG)
@click.argument("a")
@click.argument("b")
@read_from_option
@common_options
def command(a: str, b: str, read_from: tuple[str, ...], store: str, as_json: bool, traceback: bool) -> None:
    """Say what differs between the artifacts A and B: configuration, code, inputs, and the parents' first changes.

    Each is the start of a fingerprint, a path, a pin's name, or a step's name in the newest run that had it.
    """
    opened = existing_store(store, read_from)
    old, new = one_artifact(opened, a), one_artifact(opened, b)
    if old.step != new.step:
        raise ConfigurationError(
            f"{a} is of step {old.step} and {b} of step {new.step}", hint="compare two results of one step"
        )
    changes = Causes(opened).between(Key(old.step, old.fingerprint), Key(new.step, new.fingerprint))
    recorded = recorded_differences(old, new)
    if as_json:
        record = {"step": new.step, "state": "cached", "changes": [change.to_json() for change in changes]}
        sides = {"a": _side(opened, old), "b": _side(opened, new), "equal": old.digest == new.digest}
        write_json({**record, "nearest": _produced(old), **sides, "recorded": recorded})
        return
    out = stdout()
    for letter, each in (("A", old), ("B", new)):
        out.print(f"{letter}  {each.name or each.step}  {each.fingerprint[:8]}  made {each.finished} in run {each.run}")
    equal = old.digest == new.digest
    out.print(Text("the outputs are equal" if equal else "the outputs differ", style="green" if equal else "yellow"))
    if not changes:
        out.print("  nothing that counts differs" if old.fingerprint != new.fingerprint else "  they are one result")
    draw_changes(out, changes)
    for name, (before, after) in recorded.items():
        out.print(f"  recorded, does not count: {name}: {before} -> {after}", style="dim", soft_wrap=True)


def one_artifact(store: Store, text: str) -> Manifest:
    """Return the artifact that `text` names; ConfigurationError when it names several."""
    found = find_artifacts(store, text)
    if len(found) > 1:
        listed = ", ".join(f"{each.fingerprint[:8]} ({each.name or each.step})" for each in found[:_LISTED])
        more = f" and {len(found) - _LISTED} more" if len(found) > _LISTED else ""
        raise ConfigurationError(f"{text!r} names {len(found)} artifacts", hint=f"name one: {listed}{more}")
    return found[0]


def recorded_differences(old: Manifest, new: Manifest) -> dict[str, list[Any]]:
    """Return what the records say of how two results were made, where that differs; none of it is in the key."""
    before, after = _circumstances(old), _circumstances(new)
    return {
        name: [before.get(name), after.get(name)]
        for name in dict.fromkeys([*before, *after])
        if before.get(name) != after.get(name)
    }


def _circumstances(manifest: Manifest) -> Mapping[str, Any]:  # Any: JSON
    made = manifest.producer
    return {"user": made.user, "host": made.host, "commit": made.commit, **made.versions}


def _side(store: Store, manifest: Manifest) -> dict[str, Any]:
    return {
        "fingerprint": manifest.fingerprint,
        "digest": manifest.digest,
        "artifact": artifact_url(store, manifest),
        "name": manifest.name,
    }


def _produced(manifest: Manifest) -> dict[str, Any]:
    made = manifest.producer
    return {"run": manifest.run, "at": manifest.finished, "user": made.user, "commit": made.commit}
