"""A target such as `pipelines/quickstart.py:sweep`, and the pipeline's own options behind it.

A file is imported as a module, under the name that its package gives it, so that workers can import it too and
fingerprints do not know how it was named.
"""

import fnmatch
import importlib
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import click

from marin.base.errors import ConfigurationError, MarinError, did_you_mean
from marin.graph.pipeline import Pipeline, type_text
from marin.graph.plan import PlannedStep
from marin.graph.step import Step
from marin.graph.topology import Named

TAKEN = (
    *("address", "backend", "check", "detach", "grace", "help", "json", "on_busy", "on_drift", "read_from", "run_id"),
    *("store", "traceback"),
)


class Target(NamedTuple):
    """A pipeline and the steps it returned for the options given."""

    pipeline: Pipeline
    steps: tuple[Step[Any], ...]
    command: str
    """The target and its options, as typed, for the next command."""


def build_target(ctx: click.Context, text: str) -> Target:
    """Return the pipeline that `text` names, built with the options that the verb left in `ctx.args`."""
    pipeline = load_pipeline(text)
    steps = pipeline.parse(parse_options(pipeline, ctx.args, verb=ctx.command))
    return Target(pipeline, steps, shlex.join([text, *ctx.args]))


def picked(steps: Sequence[PlannedStep] | Sequence[Named], pattern: str) -> list[Step[Any]]:
    """Return the steps whose names match a glob pattern or contain the text."""
    found = [step for step in steps if fnmatch.fnmatch(step.name, pattern) or pattern in step.name]
    if not found:
        names = [step.name for step in steps]
        hint = did_you_mean(pattern, names) or f"its steps are {', '.join(names)}"
        raise ConfigurationError(f"no step matches `{pattern}`", hint=hint)
    return [step.step for step in found]


def load_pipeline(text: str) -> Pipeline:
    """Import a target and return its pipeline; ConfigurationError says what is wrong with it."""
    place, _, name = text.partition(":")
    module = _import_file(place) if place.endswith(".py") or "/" in place else _import_dotted(place)
    found = {key: value for key, value in vars(module).items() if isinstance(value, Pipeline)}
    own = {key: value for key, value in found.items() if value.function.__module__ == module.__name__} or found
    if name:
        if name not in found:
            hint = did_you_mean(name, found) or f"it has {', '.join(found) or 'none'}"
            raise ConfigurationError(f"{place} has no pipeline `{name}`", where=place, hint=hint)
        return _checked(found[name], place)
    if len(own) != 1:
        listed = ", ".join(f"{place}:{key}" for key in own)
        hint = f"name one: {listed}" if own else "decorate the function that returns the steps with @pipeline"
        raise ConfigurationError(f"{place} has {len(own) or 'no'} pipelines", where=place, hint=hint)
    return _checked(next(iter(own.values())), place)


def _checked(pipeline: Pipeline, place: str) -> Pipeline:
    """Return the pipeline unless a verb would take one of its options for its own."""
    for option in pipeline.options:
        if option.name in TAKEN:
            what = f"parameter `{option.name}` of pipeline `{pipeline.name}` has the name of an option of marin"
            raise ConfigurationError(what, where=place, hint=f"rename it, such as `{option.name}_` or what it is for")
    return pipeline


def parse_options(pipeline: Pipeline, arguments: Sequence[str], *, verb: click.Command) -> dict[str, str]:
    """Return `--name value` and `--name=value` by the parameter's name; dashes and underscores are one.

    `--name` alone is true where the parameter is a bool.
    """
    texts: dict[str, str] = {}
    options = {option.name: option for option in pipeline.options}
    rest = list(arguments)
    while rest:
        flag, equals, value = rest.pop(0).partition("=")
        name = flag[2:].replace("-", "_")
        if name not in options:
            raise _unknown_option(pipeline, flag, verb)
        if name in texts:
            raise ConfigurationError(f"{flag} is given twice", hint=f"give {flag} once")
        if not equals:
            if rest and not rest[0].startswith("--"):
                value = rest.pop(0)
            elif options[name].is_flag:
                value = "true"
            else:
                raise ConfigurationError(f"{flag} needs a value", hint=f"write {flag} VALUE")
        texts[name] = value
    return texts


def _unknown_option(pipeline: Pipeline, flag: str, verb: click.Command) -> ConfigurationError:
    own = [_flag(option.name) for option in pipeline.options]
    others = [name for parameter in verb.params if isinstance(parameter, click.Option) for name in parameter.opts]
    listed = f"its options are {', '.join(own)}" if own else "it has no options of its own"
    hint = " ".join(filter(None, (did_you_mean(flag.replace("_", "-"), [*own, *others]), listed)))
    return ConfigurationError(f"pipeline `{pipeline.name}` has no option `{flag}`", hint=hint)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _import_file(text: str) -> ModuleType:
    path = Path(os.path.abspath(text))
    if not path.is_file():
        near = did_you_mean(path.name, [each.name for each in path.parent.glob("*.py")]) if path.parent.is_dir() else ""
        raise ConfigurationError(f"there is no file {text}", where=str(path), hint=near or "check the path")
    root, parts = path.parent, [path.stem]
    while (root / "__init__.py").exists():
        parts.insert(0, root.name)
        root = root.parent
    name = ".".join(parts)
    module = _import(name, str(root), text)
    if os.path.realpath(getattr(module, "__file__", None) or "") != os.path.realpath(path):
        raise ConfigurationError(
            f"the name `{name}` belongs to another module", where=str(path), hint="give the file another name"
        )
    return module


def _import_dotted(name: str) -> ModuleType:
    if not all(part.isidentifier() for part in name.split(".")):
        raise ConfigurationError(f"{name!r} is no target", hint="name a file such as pipeline.py, or a module")
    return _import(name, os.getcwd(), name)


def _import(name: str, root: str, shown: str) -> ModuleType:
    if root not in sys.path:
        sys.path.insert(0, root)
    try:
        return importlib.import_module(name)
    except MarinError:
        raise
    except SystemExit as error:
        what = f"{shown} ends the program while it is imported (exit {error.code})"
        raise ConfigurationError(
            what, where=shown, hint='keep such lines under `if __name__ == "__main__":`'
        ) from error
    except SyntaxError as error:
        raise ConfigurationError(
            f"{shown} is no valid Python: {error.msg}", where=f"{error.filename}:{error.lineno}", hint="mend that line"
        ) from error
    except ModuleNotFoundError as error:
        missing = name == error.name or name.startswith(f"{error.name}.")
        what = f"there is no module `{name}`" if missing else f"{shown} imports `{error.name}`, which is not there"
        hint = "name a file or a module" if missing else f"pip install {error.name}, or mend the import"
        raise ConfigurationError(what, where=shown, hint=hint) from error


class TargetCommand(click.Command):
    """A verb with a target: unknown options behind it are the pipeline's, `--help` behind it shows them."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the verb's own arguments; the pipeline's options are left in `ctx.args`."""
        target, own, theirs = self._divide(ctx, args)
        if target is not None and {"-h", "--help"} & set(own):
            click.echo(pipeline_help(load_pipeline(target), ctx.command_path, target))
            ctx.exit()
        super().parse_args(ctx, own)
        ctx.args = theirs
        return ctx.args

    def _divide(self, ctx: click.Context, args: Sequence[str]) -> tuple[str | None, list[str], list[str]]:
        """Return the target, the verb's arguments and the pipeline's; every option of a pipeline takes a value."""
        options = [parameter for parameter in self.get_params(ctx) if isinstance(parameter, click.Option)]
        takes_value = {flag: not option.is_flag for option in options for flag in option.opts}
        target: str | None = None
        own: list[str] = []
        theirs: list[str] = []
        rest = list(args)
        while rest:
            argument = rest.pop(0)
            flag, equals, _ = argument.partition("=")
            is_theirs = target is not None and argument.startswith("--") and flag not in takes_value
            (theirs if is_theirs else own).append(argument)
            if not argument.startswith("-"):
                target = target or argument
            elif rest and not equals and is_theirs and not rest[0].startswith("--"):
                theirs.append(rest.pop(0))
            elif rest and not equals and takes_value.get(flag):
                own.append(rest.pop(0))
        return target, own, theirs


def pipeline_help(pipeline: Pipeline, verb: str, target: str) -> str:
    """Return the description and options of a pipeline."""
    lines = [f"Usage: {verb} {target} [OPTIONS]", "", f"  {pipeline.description}", "", "Options of the pipeline:"]
    rows = [(f"{_flag(option.name)} {type_text(option.type)}", option) for option in pipeline.options]
    width = max((len(flag) for flag, _ in rows), default=0)
    for flag, option in rows:
        default = "required" if option.required else f"default {_default_text(option.default)}"
        lines.append(f"  {flag:<{width}}  {option.help + '; ' if option.help else ''}{default}")
    return "\n".join([*lines, "", f"`{verb} --help` shows the verb's own options."])


def _default_text(value: object) -> str:
    text = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    if not text:
        return "empty"
    return text if len(text) <= 48 else f"{text[:20]}...{text[-25:]}"
