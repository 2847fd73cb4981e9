"""Code digests: an edit that can change the output changes the digest, an edit that cannot does not."""

import importlib
import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from marin.base.errors import CanonicalError
from marin.graph.code.closure import CodeDigest, digest_of

HELPER = """
LIMIT = 3
TABLE = {"a": 1}

def clean(text):
    return text.strip()

class Base:
    factor = 2
    def scale(self, x):
        return x * self.factor
"""

MAIN = """
import json
from helper{n} import clean, Base
import helper{n} as h

THRESHOLD = 0.5

def decorate(fn):
    return fn

class Counter(Base):
    \"\"\"Counts.\"\"\"

    def count(self, text, most=10):
        # how many
        words = clean(text).split()
        return len(words[:most]) if THRESHOLD < h.LIMIT else json.dumps(h.TABLE)

@decorate
def process(text: str) -> int:
    \"\"\"Process.\"\"\"
    return Counter().count(text) + sum(len(w) for w in text)

async def later(text):
    return clean(text)
"""

numbers = itertools.count()
Load = Callable[..., ModuleType]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Load]:
    """Import the two modules under fresh names, each text edited by (old, new) pairs."""
    monkeypatch.syspath_prepend(str(tmp_path))
    made = []

    def make(*edits: tuple[str, str]) -> ModuleType:
        n = next(numbers)
        texts = {f"helper{n}": HELPER, f"main{n}": MAIN.replace("{n}", str(n))}
        for old, new in edits:
            assert any(old in text for text in texts.values()), old
            texts = {name: text.replace(old, new) for name, text in texts.items()}
        for name, text in texts.items():
            (tmp_path / f"{name}.py").write_text(text)
            made.append(name)
        importlib.invalidate_caches()
        return importlib.import_module(f"main{n}")

    yield make
    for name in made:
        sys.modules.pop(name, None)


def digests(module: ModuleType) -> CodeDigest:
    return digest_of(module.process)


def normal(module: ModuleType) -> str:
    """The digest without the numbered module names, which appear in the import statements' targets only."""
    return digests(module).digest


@pytest.mark.parametrize(
    "edit",
    [
        ("return text.strip()", "return text.lstrip()"),
        ("LIMIT = 3", "LIMIT = 4"),
        ('TABLE = {"a": 1}', 'TABLE = {"a": 2}'),
        ("factor = 2", "factor = 3"),
        ("return x * self.factor", "return x + self.factor"),
        ("THRESHOLD = 0.5", "THRESHOLD = 0.25"),
        ("most=10", "most=11"),
        ("words[:most]", "words[most:]"),
        ("    return fn", "    return lambda text: fn(text)"),
        ("@decorate\n", ""),
        ("class Counter(Base):", "class Counter:"),
        ("len(w) for w in text", "len(w) + 1 for w in text"),
    ],
    ids=lambda edit: edit[1].strip()[:30],
)
def test_digest_edit_that_can_change_the_output_counts(load: Load, edit: tuple[str, str]):
    assert normal(load()) != normal(load(edit))


@pytest.mark.parametrize(
    "edit",
    [
        ("# how many", "# how many there are at most"),
        ('"""Counts."""', '"""Counts words, in whole."""'),
        ('    """Process."""\n', ""),
        ("text: str) -> int", "text)"),
        ("words = clean(text).split()", "words = (clean(\n            text\n        ).split())"),
        ("async def later(text):\n    return clean(text)", "async def later(text):\n    return text"),
        ("\nTHRESHOLD", "\nUNUSED = 7\nTHRESHOLD"),
    ],
    ids=["comment", "docstring", "no docstring", "hints", "format", "unreached function", "unreached constant"],
)
def test_digest_edit_that_cannot_change_the_output_does_not_count(load: Load, edit: tuple[str, str]):
    assert normal(load()) == normal(load(edit))


def test_digest_names_what_is_reached(load: Load):
    module = load()
    names = {name.split(".", 1)[1] for name in digests(module).definitions}
    assert names == {"process", "decorate", "Counter", "Base", "clean", "THRESHOLD", "LIMIT", "TABLE"}


def test_digest_definitions_name_the_one_that_changed(load: Load):
    before, after = load(), load(("text.strip()", "text.lstrip()"))
    old = {name.split(".", 1)[1]: value for name, value in digests(before).definitions.items()}
    new = {name.split(".", 1)[1]: value for name, value in digests(after).definitions.items()}
    assert [name for name in old if old[name] != new[name]] == ["clean"]


def test_digest_closure_and_default_values_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "closures.py").write_text(
        "def adder(n):\n    def add(x, k=[1]):\n        return x + n\n    return add\n\none, two = adder(1), adder(2)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("closures")
    assert digest_of(module.one).digest != digest_of(module.two).digest


def test_digest_same_named_helpers_of_two_modules_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "left.py").write_text("def help(x):\n    return x + 1\n")
    (tmp_path / "right.py").write_text("def help(x):\n    return x - 1\n")
    (tmp_path / "both1.py").write_text("import left, right\ndef f(x):\n    return left.help(right.help(x))\n")
    (tmp_path / "both2.py").write_text(
        "import left as right, right as left\ndef f(x):\n    return left.help(right.help(x))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    first, second = importlib.import_module("both1"), importlib.import_module("both2")
    assert digest_of(first.f).digest != digest_of(second.f).digest


def test_digest_import_inside_a_function_is_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    found = []
    for body in ("return 1", "return 2"):
        name = f"inner{next(numbers)}"
        (tmp_path / f"{name}.py").write_text(f"def value():\n    {body}\n")
        (tmp_path / f"outer_{name}.py").write_text(f"def f():\n    from {name} import value\n    return value()\n")
        monkeypatch.syspath_prepend(str(tmp_path))
        found.append(digest_of(importlib.import_module(f"outer_{name}").f))
    assert len(found[0].definitions) == 2
    assert found[0].digest != found[1].digest


def test_digest_lists_what_cannot_be_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "dynamic.py").write_text("def f(x, name):\n    return getattr(x, name)()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert digest_of(importlib.import_module("dynamic").f).untracked == ("f: getattr in line 2",)


def test_digest_library_code_is_not_followed():
    assert digest_of(Path.read_text).definitions == {}
    assert digest_of(CodeDigest).definitions == {}


def test_digest_without_source_is_an_error_with_a_hint():
    scope: dict[str, object] = {"__name__": "__main__"}
    exec("def ghost(x):\n    return x", scope)
    main = sys.modules["__main__"]
    file, main.__file__ = getattr(main, "__file__", None), None
    try:
        with pytest.raises(CanonicalError, match="cannot be read") as caught:
            digest_of(scope["ghost"])
    finally:
        main.__file__ = file
    assert caught.value.hint.startswith("write it with `def` in a file of its own and import it")
