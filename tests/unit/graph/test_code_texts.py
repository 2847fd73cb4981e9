"""A code digest gives back the texts that it stands for, as they were loaded."""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from marin.graph.code.closure import digest_of

Load = Callable[[dict[str, str]], Any]

HELPER = """import re

WORD = re.compile("a")  # words
LIMIT = 3


def helper(text):  # grüße
    return WORD.findall(text)
"""
MAIN = """import functools
from lab.helper import LIMIT, helper
from lab import side

@functools.cache
def g(x):
    \"\"\"Doc.\"\"\"
    return helper(x)[:LIMIT]

class Base:
    def go(self):
        return g(1)
Base.more = 3

def f(): return Base().go()
"""
FILES = {"__init__": "", "helper": HELPER, "main": MAIN, "side": "from . import deep\n", "deep": "X = 1\n"}


def test_texts_are_whole_lines_as_written_by_the_names_of_the_definitions(load: Load):
    code = digest_of(load(FILES).f)
    assert set(code.texts) <= set(code.definitions)
    assert code.texts["lab.helper.helper"] == "def helper(text):  # grüße\n    return WORD.findall(text)\n"
    assert code.texts["lab.helper.WORD"] == 'WORD = re.compile("a")  # words\n'
    assert code.texts["lab.main.g"] == '@functools.cache\ndef g(x):\n    """Doc."""\n    return helper(x)[:LIMIT]\n'
    assert code.texts["lab.main.f"] == "def f(): return Base().go()\n"


def test_texts_of_a_plain_value_are_what_binds_it(load: Load):
    assert digest_of(load(FILES).f).texts["lab.helper.LIMIT"] == "LIMIT = 3\n"


def test_texts_stay_what_was_loaded_when_the_file_is_edited(load: Load):
    module = load(FILES)
    code = digest_of(module.f)
    Path(module.__file__).write_text("def f(): return 2\n")
    importlib.reload(module)
    assert digest_of(module.f).texts == {"lab.main.f": "def f(): return 2\n"}
    assert code.texts["lab.main.f"] == "def f(): return Base().go()\n"
    assert code.modules["lab.main"] == MAIN


@pytest.mark.parametrize(
    "text", ["def f():\r\n    return 1\r\n", "def f():\r    return 1\r", "\ufeffdef f():\n    return 1"]
)
def test_texts_keep_line_ends_as_they_are(load: Load, text: str):
    code = digest_of(load({"main": text}).f)
    assert code.texts == {"lab.main.f": text.removeprefix("\ufeff")}
    assert code.modules == {"lab.main": text.removeprefix("\ufeff")}


def test_modules_are_those_that_can_be_imported_again_elsewhere(load: Load):
    code = digest_of(load(FILES).f)
    assert code.modules == {
        "lab": "", "lab.helper": HELPER, "lab.main": MAIN, "lab.side": FILES["side"], "lab.deep": FILES["deep"]
    }  # fmt: skip
    again = load({name.partition(".")[2] or "__init__": text for name, text in code.modules.items()})
    assert digest_of(again.f) == code


def test_texts_and_modules_of_library_code_are_empty():
    code = digest_of(Path.read_text)
    assert (code.texts, code.modules) == ({}, {})
