"""No needless rerun: an edit that cannot change what runs leaves the digest alone, and so does running."""

import importlib
from collections.abc import Callable
from typing import Any

import pytest

from marin.graph.code.closure import digest_of

Load = Callable[[dict[str, str]], Any]

PLAIN = {"main": "def f(x):\n    y = x\n    return y\n"}
CLASS = {
    "main": "class A:\n    k = 1\n    def go(self, x):\n        return x\ndef f():\n    return A().go(1)\n"
}  # fmt: skip
CALLS = {"main": "def g(x):\n    return x\ndef f():\n    return g(1)\n"}
CACHED = {"main": "import functools\n@functools.cache\ndef g(x):\n    return x\ndef f():\n    return g(1)\n"}
OWN = {"deco": "def deco(fn):\n    return fn\n", "main": f"from lab.deco import deco\n@deco\n{CALLS['main']}"}
IMPORTS = {"helper": "def g():\n    return 1\n", "main": "def f():\n    from lab.helper import g\n    return g()\n"}

# name: (files, old, new)
EDITS: dict[str, tuple[dict[str, str], str, str]] = {
    "hint of a variable": (PLAIN, "y = x", "y: int = x"),
    "hint without a value": (PLAIN, "    y = x", "    y: int\n    y = x"),
    "hint of an attribute": ({"main": "def f(x):\n    x.a = 1\n    return x\n"}, "x.a = 1", "x.a: int = 1"),
    "hint of an argument": (PLAIN, "f(x)", "f(x: int)"),
    "hint of a result": (PLAIN, "f(x)", "f(x) -> 'int'"),
    "hint of a constant": ({"main": "X = [1]\ndef f():\n    return X\n"}, "X = [1]", "X: list[int] = [1]"),
    "hint in a plain class": (CLASS, "k = 1", "k: int = 1"),
    "hint without a value in a plain class": (CLASS, "k = 1", "other: str\n    k = 1"),
    "hint of a method": (CLASS, "self, x", "self, x: int"),
    "hint of a cached function": (CACHED, "g(x)", "g(x: int) -> int"),
    "hint of a function with a decorator of our own": (OWN, "g(x)", "g(x: int) -> int"),
    "hint that names something new": (CALLS, "def g(x)", "class New:\n    pass\ndef g(x: New)"),
    "comment": (PLAIN, "y = x", "y = x  # so"),
    "line": (PLAIN, "def f", "\n\n\ndef f"),
    "format": (PLAIN, "    return y", "    return (\n        y\n    )"),
    "line ends": (PLAIN, "\n", "\r\n"),
    "docstring": (PLAIN, "    y = x", "    '''Doc.'''\n    y = x"),
    "docstring instead of pass": ({"main": "def f():\n    pass\n"}, "pass", "'''Doc.'''"),
    "docstring of a class": (CLASS, "    k = 1", "    '''Doc.'''\n    k = 1\n    '''Attribute.'''"),
    "docstring of a module": (PLAIN, "def f", "'''Doc.'''\ndef f"),
    "quotes": ({"main": "def f():\n    return 'a'\n"}, "'a'", '"a"'),
    "text in two parts": ({"main": "def f():\n    return 'ab'\n"}, "'ab'", "'a' 'b'"),
    "f-string in two parts": ({"main": "def f(x):\n    return f'{x}b'\n"}, "f'{x}b'", "f'{x}' 'b'"),
    "underscores of a number": ({"main": "def f():\n    return 1000\n"}, "1000", "1_000"),
    "pass": (PLAIN, "    y = x", "    pass\n    y = x"),
    "unreached function": (PLAIN, "def f", "def other():\n    return 1\ndef f"),
    "unreached import": (PLAIN, "def f", "import json\ndef f"),
    "constant written otherwise": ({"main": "X = 4\ndef f():\n    return X\n"}, "X = 4", "X = 2 + 2"),
    "entries of a table in another order": (
        {"main": "X = {'a': 1, 'b': 2}\ndef f():\n    return X\n"},
        "'a': 1, 'b': 2",
        "'b': 2, 'a': 1",
    ),
    "functions of a table in another order": (
        {"main": "def g():\n    return 1\ndef h():\n    return 2\nX = {'a': g, 'b': h}\ndef f():\n    return X\n"},
        "'a': g, 'b': h",
        "'b': h, 'a': g",
    ),
    "moved within the module": (
        {"main": "def g():\n    return 1\ndef h():\n    return 2\ndef f():\n    return g() + h()\n"},
        "def g():\n    return 1\ndef h():\n    return 2\n",
        "def h():\n    return 2\ndef g():\n    return 1\n",
    ),
    "local variable with the name of something else": (
        {"main": "def y():\n    return 1\ndef f(x):\n    y = x\n    return y\n"},
        "return 1",
        "return 2",
    ),
    "argument with the name of something else": (
        {"main": "def x():\n    return 1\ndef f(x):\n    return x\n"},
        "return 1",
        "return 2",
    ),
    "variable of a comprehension with the name of something else": (
        {"main": "def x():\n    return 1\ndef f(a):\n    return [x for x in a]\n"},
        "return 1",
        "return 2",
    ),
    "function of a branch that is not taken": (
        {"main": "if True:\n    def g():\n        return 1\nelse:\n    def g():\n        return 2\ndef f():\n"
            "    return g()\n"},
        "return 2",
        "return 3",
    ),
    "other class in a class of the same name": (
        {"main": "class A:\n    class K:\n        k = 1\nclass B:\n    class K:\n        k = 5\nK = A.K\n"
            "def f():\n    return K.k\n"},
        "k = 5",
        "k = 6",
    ),
    "sibling in another module that only the registry of a base class knows": (
        {
            "base": "class Base:\n    known = {}\n    def __init_subclass__(cls):\n"
                "        Base.known[cls.__name__] = cls\n",
            "other": "from lab.base import Base\nclass C(Base):\n    k = 2\n",
            "main": "from lab import other\nfrom lab.base import Base\nclass B(Base):\n    k = 1\ndef f():\n"
                "    return B.k\n",
        },
        "k = 2",
        "k = 3",
    ),
    "sibling that only the registry of a base class knows": (
        {
            "main": "class Base:\n    known = {}\n    def __init_subclass__(cls):\n"
                "        Base.known[cls.__name__] = cls\n"
            "class B(Base):\n    k = 1\nclass C(Base):\n    k = 2\ndef f():\n    return B.k\n"
        },
        "k = 2",
        "k = 3",
    ),
    "name that a library import binds at the top and nobody uses": (PLAIN, "def f", "from json import loads\ndef f"),
    "log level set on import": (PLAIN, "def f", "import logging\nlogging.basicConfig(level=3)\ndef f"),
    "run started in a script": (PLAIN, "def f", "import marin\nif len('') > 1:\n    marin.run(None)\ndef f"),
    "function of ours that is registered": (
        {"main": "T = []\ndef add(x):\n    T.append(x)\ndef a():\n    return 1\nadd(a)\ndef f():\n    return 1\n"},
        "def a():\n    return 1",
        "def a():\n    return 2",
    ),
    "what a script does": (PLAIN, "def f", "import random\nif __name__ == '__main__':\n    random.seed(1)\ndef f"),
    "default that is a hint's name": (PLAIN, "f(x)", "f(x: 'Unknown')"),
}  # fmt: skip


@pytest.mark.parametrize(("files", "old", "new"), EDITS.values(), ids=EDITS)
def test_digest_of_code_that_does_the_same_stays(load: Load, files: dict[str, str], old: str, new: str):
    digest = digest_of(load(files).f).digest
    edited = {name: text.replace(old, new) for name, text in files.items()}
    assert edited != files
    assert digest_of(load(edited).f).digest == digest


def test_digest_stays_when_a_module_that_is_imported_inside_moves(load: Load):
    digest = digest_of(load(IMPORTS).f).digest
    moved = {"main": IMPORTS["main"].replace("lab.helper", "lab.other"), "other": IMPORTS["helper"]}
    assert digest_of(load(moved).f).digest == digest


STATE = {
    "cache": "CACHE = {}\ndef f(x):\n    CACHE[x] = x\n",
    "cache by a method": "CACHE = {}\ndef f(x):\n    return CACHE.setdefault(x, x)\n",
    "counter": "N = 0\ndef f(x):\n    global N\n    N += 1\n",
    "counter of a class": "class A:\n    n = 0\n    def go(self):\n        A.n += 1\ndef f(x):\n    A().go()\n",
    "counter of the object's class": "class A:\n    n = 0\n    def go(self):\n        type(self).n += 1\n"
        "def f(x):\n    A().go()\n",
    "cache of a class": "class A:\n    seen = []\n    def go(self, x):\n        self.seen.append(x)\ndef f(x):\n"
        "    A().go(x)\n",
    "state of an object": "class A:\n    def __init__(self):\n        self.n = 0\n    def go(self):\n"
        "        self.n += 1\n"
    "X = A()\ndef f(x):\n    X.go()\n",
    "attribute of an object": "class A:\n    def __init__(self):\n        self.n = 0\nX = A()\ndef f(x):\n"
        "    X.n = x\n",
    "cell of a closure": "def make():\n    seen = {}\n    def f(x):\n        seen[x] = x\n    return f\nf = make()\n",
    "nonlocal of a closure": "def make():\n    n = 0\n    def f(x):\n        nonlocal n\n        n += 1\n"
        "    return f\nf = make()\n",
    "default": "def f(x, seen=[]):\n    seen.append(x)\n",
    "memo of a decorator": "import functools\n@functools.cache\ndef g(x):\n    return x\ndef f(x):\n    return g(x)\n",
    "memo of a decorator of our own": "import functools\ndef memo(fn):\n    known = {}\n    @functools.wraps(fn)\n"
    "    def inner(x):\n        if x not in known:\n            known[x] = fn(x)\n        return known[x]\n"
        "    return inner\n"
    "@memo\ndef f(x):\n    return x\n",
    "attribute of a function": "def f(x):\n    f.calls = x\n",
    "deep in a table": "X = {'a': {'b': []}}\ndef f(x):\n    X['a']['b'].append(x)\n",
}  # fmt: skip


@pytest.mark.parametrize("text", STATE.values(), ids=STATE)
def test_digest_stays_when_the_code_changes_its_own_state(load: Load, text: str):
    module = load({"main": text})
    digest = digest_of(module.f)
    module.f(1)
    module.f(2)
    assert digest_of(module.f) == digest
    assert digest_of(load({"main": text}).f) == digest


def test_digest_stays_when_another_module_fills_the_cache(load: Load):
    module = load({"state": "CACHE = {}\n", "main": "from lab import state\ndef f(x):\n    state.CACHE[x] = x\n"})
    digest = digest_of(module.f)
    module.f(1)
    assert digest_of(module.f) == digest


REGISTRY = {
    "registry": "T = {}\ndef register(fn):\n    T[fn.__name__] = fn\n    return fn\n",
    "plugin": "from lab.registry import register\n@register\ndef a():\n    return 1\n",
    "other": "from lab.registry import register\n@register\ndef b():\n    return 2\n",
    "main": "from lab import plugin\nfrom lab.registry import T\ndef f(name):\n    return T[name]()\n",
}
CLASSES = {
    "registry": "class Base:\n    known = {}\n    def __init_subclass__(cls):\n"
    "        Base.known[cls.__name__] = cls\n",
    "plugin": "from lab.registry import Base\nclass A(Base):\n    k = 1\n",
    "other": "from lab.registry import Base\nclass B(Base):\n    k = 2\n",
    "main": "from lab import plugin\nfrom lab.registry import Base\ndef f(name):\n    return Base.known[name]\n",
}
SUBCLASSES = {
    **CLASSES,
    "registry": "class Base:\n    pass\n",
    "main": "from lab import plugin\nfrom lab.registry import Base\ndef f():\n    return Base.__subclasses__()\n",
}
OBJECTS = {
    "registry": "class Registry:\n    def __init__(self):\n        self.items = []\n    def add(self, fn):\n"
    "        self.items.append(fn)\n        return fn\nR = Registry()\n",
    "plugin": "from lab.registry import R\n@R.add\ndef a():\n    return 1\n",
    "other": "from lab.registry import R\n@R.add\ndef b():\n    return 2\n",
    "main": "from lab import plugin\nfrom lab.registry import R\ndef f():\n    return R.items\n",
}
DISPATCH = {
    "registry": "import functools\n@functools.singledispatch\ndef g(x):\n    return 0\n",
    "plugin": "from lab.registry import g\n@g.register\ndef _(x: int):\n    return 1\n",
    "other": "from lab.registry import g\n@g.register\ndef _(x: str):\n    return 2\n",
    "main": "from lab import plugin\nfrom lab.registry import g\ndef f(x):\n    return g(x)\n",
}


@pytest.mark.parametrize("files", [REGISTRY, CLASSES, SUBCLASSES, OBJECTS, DISPATCH], ids=["table", "classes",
    "subclasses", "objects", "dispatch"])  # fmt: skip
def test_digest_does_not_know_what_modules_register_that_it_does_not_import(load: Load, files: dict[str, str]):
    """A worker imports what the step's modules import, and no more of the pipeline."""
    worker = digest_of(load(files).f)
    driver = load(files)
    importlib.import_module("lab.other")
    assert digest_of(driver.f) == worker
    needed = {**files, "main": f"from lab import other\n{files['main']}"}
    assert digest_of(load(needed).f).digest != worker.digest
    edited = {**needed, "other": needed["other"].replace("2", "3")}
    assert digest_of(load(edited).f).digest != digest_of(load(needed).f).digest


PUT = {
    **REGISTRY,
    "plugin": "from lab import registry\ndef a():\n    return 1\nregistry.T['a'] = a\n",
    "other": "from lab import registry\ndef b():\n    return 2\nregistry.T['b'] = b\n",
}


@pytest.mark.parametrize("files", [REGISTRY, PUT, CLASSES, OBJECTS, DISPATCH], ids=["decorator", "put", "classes",
    "objects", "dispatch"])  # fmt: skip
def test_digest_does_not_know_the_order_in_which_modules_register(load: Load, files: dict[str, str]):
    first = {**files, "main": f"from lab import other\n{files['main']}"}
    last = {**files, "main": files["main"].replace("def f", "from lab import other\ndef f")}
    assert digest_of(load(first).f).digest == digest_of(load(last).f).digest


def test_digest_stays_when_a_library_reloads_itself(load: Load):
    module = load({"main": "import colorsys\ndef f():\n    return colorsys.rgb_to_hsv(0, 0, 0)\n"})
    digest = digest_of(module.f)
    importlib.reload(module.colorsys)
    assert digest_of(module.f) == digest
