"""`marin invalidate`: forget a result, so that it runs again; `--undo` takes that back."""

import click

from marin.base.errors import ConfigurationError
from marin.cli.options import common_options, existing_store, stdout, write_json
from marin.run.producer import this_producer
from marin.store import Manifest, Store
from marin.store.former_results import invalidate, invalidated, undo
from marin.store.pins import pins
from marin.view.artifacts import artifact_url, find_artifact, is_called, only
from marin.view.readers import readers

EPILOG = """\b
Examples:
  marin invalidate train --reason "wrong tokenizer on node 7"
  marin invalidate 7f3a12bc --undo"""

_SHOWN = 10


@click.command(epilog=EPILOG)
@click.argument("artifact")
@click.option("--reason", help="Why it is forgotten; it is recorded.", metavar="TEXT")
@click.option("--undo", "takes_back", is_flag=True, help="Bring it back, while its files are there.")
@common_options
def command(artifact: str, reason: str | None, takes_back: bool, store: str, as_json: bool, traceback: bool) -> None:
    """Forget ARTIFACT: its step runs again. What was made from it is told.

    Its files stay until `marin gc` takes them; a pinned one is refused. Finished
    shards of a map are results of their own, and are used again.
    """
    opened = existing_store(store)
    found = _undone(opened, artifact) if takes_back else _invalidated(opened, artifact, reason)
    below = readers(opened.manifests(), found)
    if as_json:
        write_json(
            {
                **_named(opened, found),
                "undone": takes_back,
                "readers": [_named(opened, each) for each in below],
            }
        )
        return
    out = stdout()
    out.print(f"{'brought back' if takes_back else 'forgot'} {_words(found)}", soft_wrap=True)
    if below and not takes_back:
        said = (
            "1 result was made from it; it counts"
            if len(below) == 1
            else f"{len(below)} results were made from it; they count"
        )
        out.print(f"{said} again if it comes out the same:")
        for each in below[:_SHOWN]:
            out.print(f"  {_words(each)}", soft_wrap=True)
        if len(below) > _SHOWN:
            out.print(f"  and {len(below) - _SHOWN} more")
    if not takes_back:
        click.echo(f"to take it back: marin invalidate {found.fingerprint[:12]} --undo", err=True)


def _invalidated(store: Store, text: str, reason: str | None) -> Manifest:
    found = find_artifact(store, text)
    names = [each.name for each in pins(store.url) if (each.step, each.fingerprint) == (found.step, found.fingerprint)]
    if names:
        raise ConfigurationError(
            f"{_words(found)} is pinned as {', '.join(names)}",
            where=artifact_url(store, found),
            hint=f"`marin unpin {names[0]}` first",
        )
    kept = {(each.step, each.fingerprint): each.name for each in pins(store.url)}
    for reader in readers(store.manifests(), found) if kept else ():
        if name := kept.get((reader.step, reader.fingerprint)):
            raise ConfigurationError(
                f"{_words(reader)}, pinned as {name}, was made from {_words(found)}",
                where=artifact_url(store, found),
                hint=f"`marin unpin {name}` first: a pin keeps all that its result was made from",
            )
    if not invalidate(store.url, found, user=this_producer().user, reason=reason):
        raise ConfigurationError(
            f"{_words(found)} was replaced while it was looked at",
            where=artifact_url(store, found),
            hint="look at the new one with `marin show`, and run this again if that is to go",
        )
    return found


def _undone(store: Store, text: str) -> Manifest:
    former = invalidated(store.url)
    named = [each for each in former if is_called(store, each.manifest, text)]
    if not named:
        raise ConfigurationError(
            f"nothing called {text!r} was invalidated",
            where=store.url,
            hint="name it by its step or the start of its fingerprint; what gc has taken cannot be brought back",
        )
    newest = {each.manifest.fingerprint: each for each in reversed(named)}
    found = only(store, text, [each.manifest for each in newest.values()])
    undo(store.url, newest[found.fingerprint])
    return found


def _named(store: Store, manifest: Manifest) -> dict[str, str]:
    return {
        "step": manifest.step,
        "artifact": artifact_url(store, manifest),
        "fingerprint": manifest.fingerprint,
        "digest": manifest.digest,
    }


def _words(manifest: Manifest) -> str:
    return f"{manifest.step} {manifest.fingerprint[:8]} of {manifest.finished[:16].replace('T', ' ')}"
