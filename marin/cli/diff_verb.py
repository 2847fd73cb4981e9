"""`marin diff`: what differs between two results of one step, down to the first causes."""

from collections.abc import Mapping
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from marin.base.errors import ConfigurationError
from marin.cli.options import common_options, existing_store, read_from_option, stdout, write_json
from marin.cli.why_verb import draw_changes
from marin.store import Manifest, Store
from marin.view.artifacts import artifact_url, find_artifacts
from marin.view.causes import Causes, Key
from marin.view.evaluations import Compared, Comparison, compare

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

    Two evaluations are compared item by item: B - A with the 95 % interval of the paired bootstrap, how many items
    one alone gets right, and the p of McNemar's exact test.

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
    comparison = None if old.digest == new.digest else compare(opened, old, new)
    if as_json:
        record = {"step": new.step, "state": "cached", "changes": [change.to_json() for change in changes]}
        sides = {"a": _side(opened, old), "b": _side(opened, new), "equal": old.digest == new.digest}
        scores = {} if comparison is None else {"scores": _scores(comparison)}
        write_json({**record, "nearest": _produced(old), **sides, "recorded": recorded, **scores})
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
    if comparison is not None:
        draw_comparison(out, comparison)


def draw_comparison(out: Console, comparison: Comparison) -> None:
    """Write a line for each measure, and what was left out."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("task", "measure", "items", "A", "B", "B - A", "95 %", "only A", "only B", "p"):
        table.add_column(name, justify="left" if name in {"task", "measure"} else "right", no_wrap=True)
    for each in comparison.compared:
        table.add_row(*_cells(each))
    out.print(table)
    for count, what in (
        (comparison.only_a, "items are in A alone and left out"),
        (comparison.only_b, "items are in B alone and left out"),
        (comparison.other_prompts, "items were asked with another prompt"),
    ):
        if count:
            out.print(f"  {count:,} {what}", style="yellow")


def _cells(each: Compared) -> list[str]:
    a, b, difference, low, high = each.difference
    numbers = [f"{a:.4f}", f"{b:.4f}", f"{difference:+.4f}", f"{low:+.4f} to {high:+.4f}"]
    right = each.discordance
    counts = ["", "", ""] if right is None else [f"{right.only_a:,}", f"{right.only_b:,}", f"{right.p:.3g}"]
    return [each.task, each.measure, f"{each.items:,}", *numbers, *counts]


def _scores(comparison: Comparison) -> dict[str, Any]:  # Any: JSON
    return {
        "compared": [
            {"task": each.task, "measure": each.measure, "items": each.items, **each.difference._asdict()}
            | ({} if each.discordance is None else each.discordance._asdict())
            for each in comparison.compared
        ],
        "only_a": comparison.only_a,
        "only_b": comparison.only_b,
        "other_prompts": comparison.other_prompts,
    }


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
