"""A target such as `pipelines/quickstart.py:sweep`, and the pipeline's own options behind it.

A file is imported as a module, under the name that its package gives it, so that workers can import it too and
fingerprints do not know how it was named.
"""

import importlib
import importlib.util
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
from marin.graph.step import Step


class Target(NamedTuple):
    """A pipeline and the steps it returned for the options given."""

    pipeline: Pipeline
    steps: tuple[Step[Any], ...]
    command: str
    """The target and its options, as typed, for the next command."""


def build_target(text: str, arguments: Sequence[str]) -> Target:
    """Return the pipeline that `text` names, built with the options in `arguments`."""
    pipeline = load_pipeline(text)
    steps = pipeline.parse(parse_options(pipeline, arguments))
    return Target(pipeline, steps, shlex.join([text, *arguments]))


def load_pipeline(text: str) -> Pipeline:
    """Import a target and return its pipeline; ConfigurationError says what is wrong with it."""
    place, _, name = text.partition(":") if not text.startswith(("C:", "D:")) else (text, "", "")
    module = _import_file(place) if place.endswith(".py") or "/" in place else _import_dotted(place)
    found = {key: value for key, value in vars(module).items() if isinstance(value, Pipeline)}
    own = {key: value for key, value in found.items() if value.function.__module__ == module.__name__} or found
    if name:
        if name not in found:
            hint = did_you_mean(name, found) or f"it has {', '.join(found) or 'none'}"
            raise ConfigurationError(f"{place} has no pipeline `{name}`", where=place, hint=hint)
        return found[name]
    if len(own) != 1:
        listed = ", ".join(f"{place}:{key}" for key in own)
        hint = f"name one: {listed}" if own else "decorate the function that returns the steps with @pipeline"
        raise ConfigurationError(f"{place} has {len(own) or 'no'} pipelines", where=place, hint=hint)
    return next(iter(own.values()))


def parse_options(pipeline: Pipeline, arguments: Sequence[str]) -> dict[str, str]:
    """Return `--name value` and `--name=value` by the parameter's name."""
    texts: dict[str, str] = {}
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        if not argument.startswith("--"):
            raise ConfigurationError(
                f"{argument!r} is no option of pipeline `{pipeline.name}`", hint="write options as --name value"
            )
        name, equals, value = argument[2:].partition("=")
        if not equals:
            if not rest or (rest[0].startswith("--") and len(rest[0]) > 2):
                _refuse_unknown(pipeline, name)
                raise ConfigurationError(f"--{name} needs a value", hint=f"write --{name} VALUE")
            value = rest.pop(0)
        texts[name.replace("-", "_")] = value
    return texts


def _refuse_unknown(pipeline: Pipeline, name: str) -> None:
    known = [option.name for option in pipeline.options]
    if name.replace("-", "_") not in known:
        hint = did_you_mean(name.replace("-", "_"), known) or f"its options are {', '.join(known) or 'none'}"
        raise ConfigurationError(f"pipeline `{pipeline.name}` has no option `{name}`", hint=hint)


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
    return _import(name, os.getcwd(), name)


def _import(name: str, root: str, shown: str) -> ModuleType:
    if root not in sys.path:
        sys.path.insert(0, root)
    try:
        return importlib.import_module(name)
    except MarinError:
        raise
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
    """A verb whose first argument is a target; `--help` behind a target shows the pipeline's own options."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Show the pipeline's help when a target is given, otherwise parse as usual."""
        target = next((arg for arg in args if not arg.startswith("-")), None)
        if target is not None and any(arg in ("-h", "--help") for arg in args):
            click.echo(pipeline_help(load_pipeline(target), ctx.command_path, target))
            ctx.exit()
        return super().parse_args(ctx, args)


def pipeline_help(pipeline: Pipeline, verb: str, target: str) -> str:
    """Return the description and options of a pipeline."""
    lines = [f"Usage: {verb} {target} [OPTIONS]", "", f"  {pipeline.description}", "", "Options of the pipeline:"]
    rows = [(f"--{option.name.replace('_', '-')} {type_text(option.type)}", option) for option in pipeline.options]
    width = max((len(flag) for flag, _ in rows), default=0)
    for flag, option in rows:
        default = "required" if option.required else f"default {_default_text(option.default)}"
        lines.append(f"  {flag:<{width}}  {option.help + '; ' if option.help else ''}{default}")
    return "\n".join([*lines, "", f"`{verb} --help` shows the verb's own options."])


def _default_text(value: object) -> str:
    text = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return text if len(text) <= 48 else f"{text[:20]}...{text[-25:]}"
