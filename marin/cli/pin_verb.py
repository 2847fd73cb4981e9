"""`marin pin`: keep a result, and all that it was made from, whatever `marin gc` is asked to take."""

from dataclasses import asdict

import click

from marin.base.errors import ConfigurationError
from marin.cli.options import common_options, existing_store, stdout, write_json
from marin.run.producer import this_producer
from marin.store import Manifest, Store
from marin.store.pins import pin
from marin.store.unlisted import unlisted_results
from marin.view.artifacts import artifact_url, find_artifact, is_called, only

EPILOG = """\b
Examples:
  marin pin train --name paper-v1 --reason "figure 3"
  marin pin 7f3a12bc"""


@click.command(epilog=EPILOG)
@click.argument("artifact")
@click.option("--name", help="Name of the pin; by default the step and the start of the fingerprint.")
@click.option("--reason", help="Why it is kept; it is recorded.", metavar="TEXT")
@common_options
def command(artifact: str, name: str | None, reason: str | None, store: str, as_json: bool, traceback: bool) -> None:
    """Keep ARTIFACT, with all that it was made from, until it is unpinned.

    One that `marin gc` has unlisted, and whose files are still there, is listed again.
    """
    opened = existing_store(store)
    found = _found(opened, artifact)
    made = pin(opened.url, found, name=name, user=this_producer().user, reason=reason)
    if as_json:
        record = {key: value for key, value in asdict(made).items() if key != "name"}
        write_json({"pin": made.name, "artifact": artifact_url(opened, found), **record})
        return
    stdout().print(f"pinned {made.step} {made.fingerprint[:8]} as {made.name}", soft_wrap=True)


def _found(store: Store, text: str) -> Manifest:
    try:
        return find_artifact(store, text)
    except ConfigurationError:
        unlisted = [each.manifest for each in unlisted_results(store.url)]
        found = [each for each in unlisted if is_called(store, each, text)]
        if not found:
            raise
        return only(store, text, found)
