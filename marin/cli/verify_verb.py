"""`marin verify`: whether what the store holds is what was written."""

import click
from rich.text import Text

from marin.base.units import format_size
from marin.cli.errors import paint
from marin.cli.options import common_options, existing_store, stdout, write_json
from marin.cli.ticker import Ticker
from marin.store import Manifest
from marin.store.verify import Bad, Verified, verify
from marin.view.artifacts import find_artifacts

EPILOG = """\b
Examples:
  marin verify
  marin verify train --deep"""


@click.command(epilog=EPILOG)
@click.argument("artifacts", nargs=-1, metavar="[ARTIFACT]...")
@click.option("--deep", is_flag=True, help="Also read every file and compare its digest.")
@common_options
def command(artifacts: tuple[str, ...], deep: bool, store: str, as_json: bool, traceback: bool) -> int:
    """Check records and the sizes of all files; only of ARTIFACTs when they are named.

    Exits with 1 if anything is bad, naming file and artifact.
    """
    opened = existing_store(store)
    named: dict[str, Manifest] | None = None
    if artifacts:
        named = {each.fingerprint: each for text in artifacts for each in find_artifacts(opened, text)}
    ticker = Ticker()
    done = verify(
        opened,
        list(named.values()) if named is not None else None,
        deep=deep,
        progress=lambda read, total: ticker.say(f"read {format_size(read)} of {format_size(total)}"),
    )
    ticker.close()
    if as_json:
        bad = [{"artifact": each.artifact, "file": each.file, "problem": each.problem} for each in done.bad]
        write_json({"checked": done.checked, "records": done.records, "bytes": done.bytes, "bad": bad})
    else:
        _draw(done, deep=deep)
    return int(bool(done.bad))


_RECORD_HINT = "a record that cannot be believed counts as absent: run its pipeline again, or restore it from a backup"
_RECORD_HINTS = {
    "/recipe.json": "a recipe is only read to explain: delete the file; `marin invalidate` and a run write it again",
    "/shards/": "a bad record of a shard counts as absent: delete the file; the next map that wants it makes it again",
    "/runs/": "a run's record is only history: delete the file, or leave it",
    "/pins/": "a bad pin keeps nothing, and stops gc: delete the file, and pin again",
}
"""By what stands in the path of a record."""


def _draw(done: Verified, *, deep: bool) -> None:
    for each in done.bad:
        stdout().print(Text.assemble(("bad ", "red"), f"{each.file}: {each.problem}"), soft_wrap=True)
        stdout().print(f"    of {each.artifact}", soft_wrap=True)
    what = "digests" if deep else "sizes"
    state = paint(f"{len(done.bad)} bad", "red") if done.bad else paint("all good", "green")
    click.echo(f"{what} of {done.checked} files checked, {format_size(done.bytes)}: {state}", err=True)
    for hint in dict.fromkeys(_hint(each) for each in done.bad):
        click.echo(f"{paint('hint:', 'cyan')} {hint}", err=True)


def _hint(bad: Bad) -> str:
    if bad.is_record:
        return next((hint for part, hint in _RECORD_HINTS.items() if part in bad.file), _RECORD_HINT)
    return "delete a bad file and run its pipeline again: what made the file runs anew"
