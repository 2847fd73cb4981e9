"""`marin ls`: what the store holds."""

import click
from rich.table import Table

from marin.base.units import format_size
from marin.cli.options import common_options, existing_store, stdout, write_json
from marin.store.pins import readable_pins
from marin.view.artifacts import artifact_url, find_artifacts

EPILOG = """\b
Examples:
  marin ls
  marin ls train --json"""


@click.command(epilog=EPILOG)
@click.argument("step", required=False)
@common_options
def command(step: str | None, store: str, as_json: bool, traceback: bool) -> None:
    """List artifacts, the newest first; only those of STEP when it is named."""
    opened = existing_store(store)
    manifests = find_artifacts(opened, step) if step else opened.manifests()
    pinned: dict[tuple[str, str], list[str]] = {}
    for pin in readable_pins(opened.url):
        pinned.setdefault((pin.step, pin.fingerprint), []).append(pin.name)
    if as_json:
        rows = [
            {
                "step": each.step,
                "fingerprint": each.fingerprint,
                "digest": each.digest,
                "type": each.artifact,
                "bytes": each.size,
                "artifact": artifact_url(opened, each),
                "run": each.run,
                "user": each.producer.user,
                "at": each.finished,
                "pinned": pinned.get((each.step, each.fingerprint), []),
            }
            for each in manifests
        ]
        write_json({"store": opened.url, "artifacts": rows})
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("step", "fingerprint", "type", "size", "made", "by", *(["pinned as"] if pinned else [])):
        table.add_column(heading, justify="right" if heading == "size" else "left")
    for each in manifests:
        made = each.finished[:16].replace("T", " ")
        size = format_size(each.size)
        names = ", ".join(pinned.get((each.step, each.fingerprint), ()))
        row = (each.step, each.fingerprint[:8], each.artifact, size, made, each.producer.user)
        table.add_row(*row, *([names] if pinned else []))
    stdout().print(table)
