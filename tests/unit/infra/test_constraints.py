"""constraints.txt pins all that `make test` installs, and agrees with pyproject.toml."""

import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[3]
LINES = [line.strip() for line in (ROOT / "constraints.txt").read_text().splitlines()]
PINS = dict(line.split("==") for line in LINES if line and not line.startswith("#"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = ("dev", "s3", "export", "gguf")
DIRECT = [*PROJECT["dependencies"], *(text for extra in EXTRAS for text in PROJECT["optional-dependencies"][extra])]
# The CUDA build of torch names these exactly itself.
TORCH_OWN = re.compile(r"nvidia-|cuda-|triton")


@pytest.mark.parametrize("text", sorted(set(DIRECT)))
def test_pin_satisfies_what_the_project_asks(text: str) -> None:
    requirement = Requirement(text)
    assert requirement.specifier.contains(PINS[canonicalize_name(requirement.name)])


def test_pins_are_canonical_exact_and_stand_once() -> None:
    names = [line.partition("==")[0] for line in LINES if line and not line.startswith("#")]
    assert names == [canonicalize_name(name) for name in names]
    assert len(names) == len(set(names))
    assert all(str(Version(version)) for version in PINS.values())


def test_all_that_is_reached_from_marin_is_installed_as_pinned() -> None:
    installed = {name: Version(metadata.version(name)).public for name in reached("marin", {"dev", "s3"})}
    wrong = {name: version for name, version in installed.items() if PINS.get(name) != version}
    assert {name: wrong[name] for name in wrong if not TORCH_OWN.match(name)} == {}


def reached(root: str, extras: set[str]) -> set[str]:
    """Return the canonical names of all installed distributions that `root[extras]` depends on."""
    seen: set[tuple[str, str]] = set()
    ahead = [(root, extra) for extra in ("", *extras)]
    while ahead:
        name, extra = ahead.pop()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        for requirement in map(Requirement, metadata.requires(name) or ()):
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                child = canonicalize_name(requirement.name)
                ahead.extend((child, extra) for extra in ("", *requirement.extras))
    return {name for name, _ in seen} - {root}


def test_python_versions_agree_everywhere() -> None:
    assert PROJECT["requires-python"] == ">=3.11"
    for path in ("Makefile", ".ci/run"):
        assert "(3, 11) <= sys.version_info" in (ROOT / path).read_text()
