"""Every page keeps its word: snippets run, commands answer as shown, links lead somewhere.

The fences say what to do with them; docs/contributing/testing.md, "Snippets in pages", is the legend.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "infra").rglob("*.md"))]
BIN = Path(sys.executable).parent
FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
# The quickstart as the pages type it would take minutes: the same pipeline on 200 tiny files.
SMALL = {"files": "small/*.py", "tokens": 16_384, "vocab_size": 300, "context": 32}


@dataclass(frozen=True)
class Block:
    """One fenced block: `language`, then `flags` such as `norun` or `file=words.py`."""

    page: Path
    line: int
    language: str
    flags: dict[str, str]
    text: str

    @property
    def commands(self) -> Iterator[tuple[str, list[str]]]:
        """Yield each command after `$` with the lines of output shown below it."""
        for part in re.split(r"^\$ ", self.text, flags=re.MULTILINE)[1:]:
            command, *shown = part.rstrip().split("\n")
            yield command, shown


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text()
    found = []
    for match in FENCE.finditer(text):
        language, *flags = match["info"].split() or [""]
        pairs = dict(flag.partition("=")[::2] for flag in flags)
        found.append(Block(page, text.count("\n", 0, match.start()) + 1, language, pairs, match["text"]))
    return found


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkout as a reader has it, as far as pages need one."""
    shutil.copytree(ROOT / "pipelines", tmp_path / "pipelines")
    (tmp_path / "small").mkdir()
    for number in range(200):
        source = f"def add_{number}(x: int) -> int:\n    return x + {number}\n"
        (tmp_path / "small" / f"{number}.py").write_text(source)
    return tmp_path


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_page_snippets_do_what_the_page_says(page: Path, folder: Path) -> None:
    for block in blocks_of(page):
        if block.language == "python" and "file" in block.flags:
            (folder / block.flags["file"]).write_text(block.text)
        elif block.language == "python":
            check(block, [sys.executable, "-c", smaller(block.text)], folder, shown=[])
        elif block.language == "console" and "norun" not in block.flags:
            for command, shown in block.commands:
                if not command.startswith("make "):
                    check(block, ["bash", "-c", smaller(command)], folder, shown)


def smaller(text: str) -> str:
    options = " ".join(f"--{name} {shlex.quote(str(value))}" for name, value in SMALL.items())
    values = ", ".join(f"{name}={value!r}" for name, value in SMALL.items())
    text = re.sub(r"^marin \w+ pipelines/quickstart\.py.*", rf"\g<0> {options}", text)
    return text.replace("quickstart.build()", f"quickstart.build({values})")


def check(block: Block, command: list[str], folder: Path, shown: list[str]) -> None:
    """Run a command in the page's folder; its exit code and the lines shown must be so."""
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "COLUMNS": "120"}
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        text=True,
        capture_output=True,
        timeout=240,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    where = f"{name_of(block.page)}:{block.line}: {command[-1]}\n{done.stdout}\n{done.stderr}"
    assert done.returncode == int(block.flags.get("exit", 0)), where
    position = 0
    output = done.stderr + done.stdout
    for line in filter(None, map(str.strip, shown)):
        match = re.compile(pattern_of(line)).search(output, position)
        assert match, f"not in the output, or not in this order: {line!r}\n{where}"
        position = match.end()


def pattern_of(line: str) -> str:
    """Turn a line of a page into a pattern: `…` matches anything within a line, spaces any spaces."""
    parts = (r"\s+".join(map(re.escape, part.split())) for part in line.split("…"))
    return r"[^\n]*".join(parts)


def words_after(program: str) -> list[str]:
    """Return what stands after `program` in any command of any page, commands that are not run included."""
    blocks = [block for page in PAGES for block in blocks_of(page) if block.language == "console"]
    commands = [shlex.split(command, comments=True) for block in blocks for command, _ in block.commands]
    return sorted({second for words in commands for first, second in pairwise(words) if first == program})


@pytest.mark.parametrize("verb", words_after("marin"))
def test_verb_named_by_a_page_exists(verb: str) -> None:
    subprocess.run([BIN / "marin", verb, "--help"], check=True, capture_output=True, timeout=60)


@pytest.mark.parametrize("target", words_after("make"))
def test_make_target_named_by_a_page_exists(target: str) -> None:
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_page_links_resolve(page: Path) -> None:
    text = FENCE.sub("", page.read_text())
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if not re.match(r"[a-z]+:", link)]
    assert [link for link in links if not (page.parent / link.partition("#")[0]).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_page_fences_name_a_language(page: Path) -> None:
    known = {"python", "console", "text", "yaml"}
    assert [(block.line, block.language) for block in blocks_of(page) if block.language not in known] == []


def test_every_page_is_reachable_from_the_readme() -> None:
    seen, ahead = set(), [ROOT / "README.md"]
    while ahead:
        page = ahead.pop()
        if page in seen or page.suffix != ".md":
            continue
        seen.add(page)
        links = re.findall(r"\]\(([^)\s:]+\.md)(?:#[^)]*)?\)", FENCE.sub("", page.read_text()))
        ahead.extend((page.parent / link).resolve() for link in links)
    assert [name_of(page) for page in PAGES if page.resolve() not in {p.resolve() for p in seen}] == []
