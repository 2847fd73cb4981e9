"""Where code can live besides modules: scripts, notebooks, what `exec` made; and files that were parsed before."""

import linecache
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import blake3
import pytest

from marin.base.errors import CanonicalError
from marin.graph.code import parsed
from marin.graph.code.closure import CodeDigest, digest_of

Load = Callable[[dict[str, str]], Any]

STEP = "from marin import Step, Value\n"
KIND = "class Count(Step[Value[int]]):\n    most: int = 1\n    def run(self, ctx):\n        return helper(self.most)\n"


class Notebook:
    """A `__main__` without a file, whose cells are executed as IPython does it."""

    def __init__(self) -> None:
        self.module = ModuleType("__main__")
        self.cells = [""]
        vars(self.module)["In"] = self.cells

    def run(self, cell: str) -> None:
        """Execute a cell."""
        self.cells.append(cell)
        name = f"<ipython-input-{len(self.cells)}-{abs(hash(cell))}>"
        linecache.cache[name] = (len(cell), None, cell.splitlines(keepends=True), name)
        exec(compile(cell, name, "exec"), vars(self.module))

    def digest(self, name: str) -> CodeDigest:
        """Return the digest of what a name stands for."""
        return digest_of(vars(self.module)[name])


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Iterator[Notebook]:
    """A fresh notebook that is this process's `__main__`."""
    made = Notebook()
    monkeypatch.setitem(sys.modules, "__main__", made.module)
    yield made
    for name in [name for name in linecache.cache if name.startswith("<ipython-input")]:
        del linecache.cache[name]


def test_notebook_step_and_helper_of_other_cells_count(notebook: Notebook):
    notebook.run(STEP)
    notebook.run("def helper(n):\n    return n + 1\n")
    notebook.run(KIND)
    before = notebook.digest("Count")
    assert {name.split(".")[1] for name in before.definitions} == {"Count", "helper"}
    notebook.run("def helper(n):\n    return n + 2\n")
    assert notebook.digest("Count").digest != before.digest
    notebook.run("# back\ndef helper(n: int):\n    '''Doc.'''\n    return n + 1\n")
    assert notebook.digest("Count").digest == before.digest


def test_notebook_class_without_a_method_counts(notebook: Notebook):
    notebook.run("class A:\n    k = 1\ndef f():\n    return A.k\n")
    before = notebook.digest("f").digest
    notebook.run("class A:\n    k = 2\n")
    assert notebook.digest("f").digest != before


def test_notebook_object_counts_by_the_cell_that_made_it(notebook: Notebook):
    notebook.run("import random\nX = random.Random(1)\ndef f():\n    return X\n")
    before = notebook.digest("f")
    assert before.untracked == ()
    notebook.run("X = random.Random(2)")
    changed = notebook.digest("f").digest
    assert changed != before.digest
    notebook.run("X = random.Random(1)")
    assert notebook.digest("f").digest == before.digest


def test_notebook_cell_that_fills_an_object_counts(notebook: Notebook):
    notebook.run("import random\nX = random.Random(1)\ndef f():\n    return X\n")
    before = notebook.digest("f").digest
    notebook.run("X.seed(3)")
    assert notebook.digest("f").digest != before


def test_notebook_texts_are_the_cells(notebook: Notebook):
    notebook.run("Y = 1\ndef helper(n):\n    return n + Y\n")
    notebook.run("def f():\n    return helper(1)\n")
    code = notebook.digest("f")
    assert code.texts["__main__.helper"] == "def helper(n):\n    return n + Y\n"
    assert set(code.modules) == {"__main__"}
    assert "def f():" in code.modules["__main__"]
    assert "Y = 1" in code.modules["__main__"]


def test_notebook_lines_that_are_no_python_are_passed_over(notebook: Notebook):
    notebook.cells.append("%time f()")
    notebook.run("X = [1]\ndef f():\n    return X\n")
    assert notebook.digest("f").definitions.keys() == {"__main__.f", "__main__.X"}


SCRIPT = """import json, re
WORD = re.compile("a")
LIMIT = 3
class Helper:
    k = 1
    def go(self, x): return WORD.findall(x)[:LIMIT]
def f(x):
    return Helper().go(x)
if __name__ == "__main__":
    from marin.graph.code.closure import digest_of
    print(json.dumps(digest_of(f).digest))
"""


def script(path: Path, *arguments: str) -> str:
    command = [sys.executable, *arguments, str(path)]
    environment = {**os.environ, "XDG_CACHE_HOME": str(path.parent / "cache")}
    return subprocess.run(
        command, cwd=path.parent, env=environment, capture_output=True, text=True, check=True
    ).stdout.strip()


def test_script_has_the_digest_that_its_import_has(load: Load, tmp_path: Path):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    printed = script(path)
    module = subprocess.run(
        [sys.executable, "-m", "script"], cwd=tmp_path, capture_output=True, text=True, check=True
    ).stdout.strip()
    assert printed == module == f'"{digest_of(load({"main": SCRIPT}).f).digest}"'
    path.write_text(SCRIPT.replace("k = 1", "k = 2"))
    assert script(path) != printed


@pytest.mark.parametrize("text", ["def ghost(x):\n    return x", "ghost = lambda x: x"])
def test_function_made_by_exec_is_refused_with_what_to_do(load: Load, text: str):
    module = load({"main": f"exec({text!r})\ndef f():\n    return ghost(1)\n"})
    with pytest.raises(CanonicalError, match="cannot be read") as caught:
        digest_of(module.f)
    assert "what `exec` makes has no source to read" in caught.value.hint
    assert caught.value.where == f"lab.main.{module.ghost.__qualname__}"


def test_class_made_by_exec_is_listed_as_untracked(load: Load):
    module = load({"main": "exec('class A:\\n    def go(self):\\n        return 1')\ndef f():\n    return A().go()\n"})
    assert digest_of(module.f).untracked == ("lab.main.A: a type made at run time",)


# What was parsed is remembered on disk.

FILES = {"helper": "X = {'a': 1}\ndef g(x=(1, 2.5)):\n    return f'{x!r:>4}', X, ...\n"}
FILES["main"] = "from lab.helper import g\nclass A:\n    def go(self, x: int) -> str:\n        return g(x)\nf = A\n"


@pytest.fixture
def memo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file in which this test's process remembers what it parsed."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return parsed.default_memo()


def rewrite(memo: Path, old: bytes, new: bytes) -> None:
    """Change entries, their checksums too: what is read from them then shows."""
    with sqlite3.connect(memo) as database:
        for key, entry in database.execute("select key, entry from parsed").fetchall():
            changed = entry.replace(old, new)
            row = blake3.blake3(changed).digest(), changed, key
            database.execute("update parsed set checksum = ?, entry = ? where key = ?", row)


def test_memo_gives_the_same_digest(load: Load, memo: Path):
    cold = digest_of(load(FILES).f)
    warm = digest_of(load(FILES).f)
    assert (warm, warm.texts) == (cold, cold.texts)


def test_memo_is_what_a_later_load_reads(load: Load, memo: Path):
    digest_of(load(FILES).f)
    rewrite(memo, b'"go"', b'"no"')
    with pytest.raises(CanonicalError, match="cannot be read"):
        digest_of(load({"main": FILES["main"], "helper": "g = 1\n"}).f.go)
    assert digest_of(load({**FILES, "main": FILES["main"] + "# edited\n"}).f.go)


def damage(memo: Path, how: str) -> None:
    if how == "no database":
        memo.write_bytes(b"no database at all" * 100)
    elif how == "empty":
        memo.write_bytes(b"")
    elif how == "torn":
        memo.write_bytes(memo.read_bytes()[:5000])
    elif how == "folder":
        memo.unlink()
        memo.mkdir()
    elif how == "other table":
        memo.unlink()
        with sqlite3.connect(memo) as database:
            database.execute("create table parsed (key text primary key, entry text)")
    elif how == "entry":
        with sqlite3.connect(memo) as database:
            database.execute("update parsed set entry = replace(entry, 'a', 'b')")
    elif how == "text entry":
        with sqlite3.connect(memo) as database:
            database.execute("update parsed set entry = 'text'")
    elif how == "unwritable":
        memo.chmod(0o400)
        memo.parent.chmod(0o500)


@pytest.mark.parametrize(
    "how", ["no database", "empty", "torn", "folder", "other table", "entry", "text entry", "unwritable"]
)
def test_memo_that_is_damaged_is_not_used(load: Load, memo: Path, how: str):
    digest = digest_of(load(FILES).f)
    damage(memo, how)
    parsed_anew = digest_of(load({**FILES, "helper": FILES["helper"] + "# edited\n"}).f)
    memo.parent.chmod(0o700)
    assert parsed_anew == digest
    assert digest_of(load(FILES).f) == digest


def test_memo_that_was_no_database_is_begun_anew(load: Load, memo: Path):
    memo.parent.mkdir(parents=True)
    damage(memo, "no database")
    for number in range(3):
        digest_of(load({**FILES, "helper": f"{FILES['helper']}# edited {number}\n"}).f)
    with sqlite3.connect(memo) as database:
        assert database.execute("select count(*) from parsed").fetchone()[0] >= 2


def test_memo_is_kept_apart_for_another_optimization(load: Load, memo: Path, tmp_path: Path):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT.replace("def f(x):", "def f(x):\n    assert x"))
    assert script(path) == script(path, "-O") == script(path)
