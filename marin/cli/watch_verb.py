"""`marin watch`: the live screen of a run that goes on elsewhere, from any machine that sees the store."""

import click

from marin.cli.follow import exit_code, followed, say_left
from marin.cli.options import EXIT_CODES, common_options, existing_store, write_json
from marin.cli.status_verb import find_run, status_json

EPILOG = """\b
Examples:
  marin watch
  marin watch 20261201-134501-7f3a --store s3://lab/marin"""


@click.command(epilog=EPILOG)
@click.argument("run", required=False)
@common_options
def command(run: str | None, store: str, as_json: bool, traceback: bool) -> int:
    """Show RUN until it is over; the newest one when none is named. Times are UTC.

    Ctrl-C leaves the run alone. Exits as the run does: 0 done, 1 failed or lost, 2 wrong usage, 3 store or
    cluster not reachable, 130 stopped. `--json` writes what `marin status --json` does, once it is over.
    """
    opened = existing_store(store)
    name = find_run(opened, run)
    try:
        stands = followed(opened, name, as_json=as_json, option=store)
    except KeyboardInterrupt:
        say_left(name, store)
        return EXIT_CODES["stopped"]
    if as_json:
        write_json(status_json(opened, stands, store))
    return exit_code(stands)
