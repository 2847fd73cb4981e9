"""`marin unpin`: let a result go again."""

import click

from marin import fs
from marin.base.errors import ConfigurationError, did_you_mean
from marin.cli.options import common_options, existing_store, stdout, write_json
from marin.store import Store
from marin.store.pins import Pin, pin_names, pins, unpin
from marin.view.artifacts import SHORTEST_PREFIX

EPILOG = """\b
Examples:
  marin unpin paper-v1
  marin unpin 7f3a12bc --json"""


@click.command(epilog=EPILOG)
@click.argument("what", metavar="NAME|ARTIFACT")
@common_options
def command(what: str, store: str, as_json: bool, traceback: bool) -> None:
    """Take back the pin called NAME, or all pins of ARTIFACT."""
    opened = existing_store(store)
    names = [what] if what in pin_names(opened.url) else [each.name for each in _pins_of(opened, what)]
    for name in names:
        unpin(opened.url, name)
    if as_json:
        write_json({"unpinned": names})
    else:
        stdout().print(f"unpinned {', '.join(names)}", soft_wrap=True)


def _pins_of(store: Store, text: str) -> list[Pin]:
    """Return the pins of the one result that `text` names, also when the store does not list it any more."""
    known = pins(store.url)
    found = [each for each in known if _is_of(store, each, text)]
    if not found:
        hint = did_you_mean(text, [each.name for each in known]) or "`marin ls` shows what is pinned"
        raise ConfigurationError(f"no pin is called {text!r}, and none keeps such an artifact", hint=hint)
    if len({(each.step, each.fingerprint) for each in found}) > 1:
        lines = "\n".join(f"{each.name}: {each.step} {each.fingerprint[:12]}" for each in found)
        raise ConfigurationError(f"{text!r} names several pinned artifacts", where=lines, hint="name the pin")
    return found


def _is_of(store: Store, pin: Pin, text: str) -> bool:
    is_start = len(text) >= SHORTEST_PREFIX and (pin.fingerprint.startswith(text) or pin.digest.startswith(text))
    return is_start or text == pin.step or fs.normalise(text) == store.artifact_folder(pin.step, pin.fingerprint)
