"""The container image file: what it copies exists, is in its context, and is installed as pinned."""

import re
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).parents[3]
CONTAINERFILE = (ROOT / "infra/container/Containerfile").read_text()
IGNORE = (ROOT / "infra/container/Containerfile.dockerignore").read_text().splitlines()
COPIED = [source for line in re.findall(r"^COPY (.+)$", CONTAINERFILE, re.MULTILINE) for source in line.split()[:-1]]


def test_image_installs_the_constraints_and_runs_as_an_ordinary_user() -> None:
    assert re.search(r"^ARG PYTHON=3\.1[1-4]\nFROM python:\$\{PYTHON\}-slim$", CONTAINERFILE, re.MULTILINE)
    installs = re.findall(r"pip install .+", CONTAINERFILE)
    assert all("-c constraints.txt" in line or "--no-deps" in line for line in installs)
    assert re.findall(r"^USER (\S+)$", CONTAINERFILE, re.MULTILINE)[-1] == "marin"


def test_image_copies_only_what_exists() -> None:
    assert [source for source in COPIED if not (ROOT / source).exists()] == []


def test_image_context_holds_what_is_copied_and_no_more() -> None:
    rules = [line for line in IGNORE if line and not line.startswith("#")]
    assert rules[0] == "*"
    assert sorted(line[1:] for line in rules if line.startswith("!")) == sorted(set(COPIED))


def test_image_context_leaves_caches_out() -> None:
    assert any(fnmatch("marin/run/__pycache__", rule.replace("**", "*")) for rule in IGNORE[2:])


def test_image_holds_what_the_pipelines_need() -> None:
    """pyproject is read by the build, and names the readme."""
    assert {"pyproject.toml", "README.md", "constraints.txt", "marin", "pipelines"} <= set(COPIED)
