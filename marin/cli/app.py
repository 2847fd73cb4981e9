"""The command line: one verb a module, imported when it is called.

Data go to standard output, everything else to standard error. Exit codes: 0 done, 1 a step failed, 2 wrong usage or
configuration, 3 store, cluster or output not reachable, 130 interrupted, 141 the reader of the output has left.
"""

import contextlib
import importlib.metadata
import logging
import sys
from typing import Any, NoReturn

import click

from marin.base.errors import ConfigurationError, MarinError, did_you_mean
from marin.base.lazy import resolve
from marin.cli import output
from marin.cli.errors import SaidOnce, WarningLine, render_error, render_unexpected

VERBS = {
    "plan": "what would run, and why",
    "run": "run a pipeline; running it again continues",
    "submit": "run a pipeline as a Ray job",
    "why": "why a step would run",
    "diff": "what differs between two results",
    "bless": "accept changed code without a rerun",
    "status": "how a run stands",
    "watch": "the live screen of a run",
    "logs": "what the workers of a run wrote",
    "metrics": "the numbers of a run, also for other tools",
    "stop": "ask a run to stop and keep what it has",
    "ls": "what the store holds",
    "show": "one artifact or one run",
    "cat": "samples of data, decoded",
    "repro": "a folder that makes an artifact again",
    "verify": "whether files are what was written",
    "pin": "keep a result",
    "unpin": "let a pinned result go",
    "invalidate": "forget a result, so that it runs again",
    "gc": "free what nothing needs",
    "doctor": "check versions, store, cluster and devices",
}
EPILOG = """Exit codes: 0 done, 1 a step failed, 2 wrong usage, 3 store, cluster or output
not reachable, 130 stopped, 141 the reader of the output has left (`| head`).

Examples:

  marin run pipelines/quickstart.py

  marin plan pipelines/quickstart.py --lr 1e-3"""


class Verbs(click.Group):
    """Finds a verb's module when the verb is called; listing verbs imports none of them."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Parse what is typed."""
        with output.broken_pipes():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:  # Any: what the verb returns
        """Call the verb."""
        with output.broken_pipes():
            return super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the verbs in the order of use."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a verb; ConfigurationError for an unknown one."""
        if cmd_name not in VERBS:
            hint = did_you_mean(cmd_name, VERBS) or f"verbs are {', '.join(VERBS)}"
            raise ConfigurationError(f"there is no verb `{cmd_name}`", hint=hint)
        command: click.Command = resolve(f"marin.cli.{cmd_name}_verb:command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of verbs."""
        with formatter.section("Verbs"):
            formatter.write_dl(list(VERBS.items()))

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples as they are."""
        formatter.write("\n" + EPILOG.replace("\n\n  ", "\n  ") + "\n")


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(importlib.metadata.version("marin"), prog_name="marin")
def marin() -> None:
    """Run pipelines of content-hashed steps: what is done is kept, what changed is run."""


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and exit with its code."""
    sys.exit(call(sys.argv[1:] if arguments is None else arguments))


def call(arguments: list[str]) -> int:
    """Run the command line; return its exit code."""
    warnings = logging.StreamHandler()
    warnings.setFormatter(WarningLine())
    warnings.addFilter(SaidOnce())
    logging.basicConfig(handlers=[warnings], level=logging.WARNING)
    try:
        code = _called(arguments)
        output.flush()
    except OSError as error:  # what was left to write could not be written
        return _not_written(error, arguments)
    return code


def _called(arguments: list[str]) -> int:
    as_json, whole = "--json" in arguments, "--traceback" in arguments
    try:
        result: Any = marin.main(args=arguments, prog_name="marin", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return error.exit_code
    except click.UsageError as error:
        return render_error(_usage_error(error), json=as_json)
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return 130
    except MarinError as error:
        return render_error(error, json=as_json, traceback=whole)
    except OSError as error:
        return _not_written(error, arguments)
    except output.BrokenPipe as error:
        return _not_written(error.cause, arguments)
    except Exception as error:  # noqa: BLE001  the boundary: whatever it is, the user gets a place to look
        return render_unexpected(error, json=as_json, traceback=whole)


def _not_written(error: OSError, arguments: list[str]) -> int:
    """Return the exit code for an error of the system: of the output, or of a file that the user named."""
    if output.reader_is_gone():
        return output.READER_GONE
    full = output.refused(error)
    where = str(error.filename or "")
    what = f"{error.strerror or error}" + (f": {where}" if where else "")
    said = full or ConfigurationError(what, where=where, hint="check the path and its permission")
    with contextlib.suppress(OSError):  # standard error may be as full
        render_error(said, json=full is None and "--json" in arguments, traceback="--traceback" in arguments)
    return said.exit_code


def _usage_error(error: click.UsageError) -> ConfigurationError:
    verb = error.ctx.command_path if error.ctx else "marin"
    hint = f"`{verb} --help` shows what it takes"
    if isinstance(error, click.NoSuchOption) and error.ctx:
        known = [name for parameter in error.ctx.command.params for name in parameter.opts]
        hint = did_you_mean(error.option_name, known) or hint
    return ConfigurationError(error.format_message().rstrip("."), hint=hint)
