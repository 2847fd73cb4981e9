"""What no reader can follow is listed, and nothing else is."""

from collections.abc import Callable
from typing import Any

import pytest

from marin import Step, Value, plan
from marin.graph.code.closure import code_at_rest, digest_of

Load = Callable[[dict[str, str]], Any]
SETTINGS = "class Settings:\n    limit = 1\nS = Settings()\n"

LISTED = {
    "getattr": ("def f(x, n):\n    return getattr(x, n)\n", ("f: getattr in line 2",)),
    "getattr handed on": ("def f(x):\n    return map(getattr, x)\n", ("f: getattr in line 2",)),
    "eval": ("def f(x):\n    return eval(x)\n", ("f: eval in line 2",)),
    "exec": ("def f(x):\n    exec(x)\n", ("f: exec in line 2",)),
    "globals": ("def f(n):\n    return globals()[n]\n", ("f: globals in line 2",)),
    "vars": ("def f(x):\n    return vars(x)\n", ("f: vars in line 2",)),
    "import by a name that varies": (
        "import importlib\ndef f(n):\n    return importlib.import_module(n)\n",
        ("f: importlib.import_module in line 3",),
    ),
    "__import__": ("def f(n):\n    return __import__(n)\n", ("f: __import__ in line 2",)),
    "entry points": (
        "from importlib.metadata import entry_points\ndef f():\n    return entry_points(group='lab')\n",
        ("f: entry_points in line 3",),
    ),
    "modules of a package": (
        "import pkgutil\ndef f(p):\n    return list(pkgutil.iter_modules(p))\n",
        ("f: pkgutil.iter_modules in line 3",),
    ),
    "loaded modules": ("import sys\ndef f(n):\n    return sys.modules[n]\n", ("f: sys.modules in line 3",)),
    "script": ("import runpy\ndef f(p):\n    runpy.run_path(p)\n", ("f: runpy.run_path in line 3",)),
    "in a method": (
        "class A:\n    def go(self, n):\n        return getattr(self, n)\ndef f():\n    return A()\n",
        ("A: getattr in line 3",),
    ),
    "import that fails": ("def f():\n    from lab.nothing import g\n    g()\n", ("f: import of lab.nothing",)),
    "subclass made by a call": (
        "class A:\n    pass\nT = [type('B', (A,), {})]\ndef f():\n    return A.__subclasses__()\n",
        ("lab.main.B: made at run time",),
    ),
    "value that nothing explains": (
        "import threading\nglobals().update(X=threading.Lock())\ndef f():\n    return X\n",
        ("lab.main.X: a lock made at run time",),
    ),
}
FOLLOWED = {
    "getattr with a constant name": f"{SETTINGS}def f():\n    return getattr(S, 'limit', 2)\n",
    "getattr of a call": "def g():\n    return 1\ndef f():\n    return getattr(g(), 'real')\n",
    "globals with a constant name": "X = 1\ndef f():\n    return globals()['X']\n",
    "import of a constant name": "def f():\n    import importlib\n    return importlib.import_module('json').loads\n",
    "registry": "T = {}\ndef add(fn):\n    T[fn.__name__] = fn\n    return fn\n@add\ndef g():\n    pass\n"
    "def f(n):\n    return T[n]\n",
    "method called eval": "def f(model):\n    model.eval()\n",
    "variable called vars": "def f(vars):\n    return vars\n",
    "library object": "import re\nX = re.compile('a')\ndef f():\n    return X\n",
    "import that fails and is caught": "try:\n    import nothing_at_all\nexcept ImportError:\n    X = None\n"
    "def f():\n    return X\n",
}


@pytest.mark.parametrize(("text", "listed"), LISTED.values(), ids=LISTED)
def test_untracked_lists_what_cannot_be_followed(load: Load, text: str, listed: tuple[str, ...]):
    assert digest_of(load({"main": text}).f).untracked == listed


@pytest.mark.parametrize("text", FOLLOWED.values(), ids=FOLLOWED)
def test_untracked_lists_nothing_that_was_followed(load: Load, text: str):
    assert digest_of(load({"main": text}).f).untracked == ()


REST = "LIMIT = 1\nTABLE = [1]\ndef f():\n    return LIMIT, TABLE\n"


def test_code_at_rest_is_looked_at_once_and_anew_afterwards(load: Load):
    module = load({"main": REST})
    before = digest_of(module.f)
    with code_at_rest():
        assert digest_of(module.f) == before
        module.LIMIT = 2
        with code_at_rest():
            assert digest_of(module.f) == before
        assert digest_of(module.f) == before
    changed = digest_of(module.f)
    assert changed != before
    module.LIMIT = 1
    with code_at_rest():
        assert digest_of(module.f) == before


def test_code_at_rest_ends_when_a_plan_fails(load: Load):
    module = load({"main": REST})
    before = digest_of(module.f)
    with pytest.raises(ZeroDivisionError), code_at_rest():
        raise ZeroDivisionError
    module.TABLE.append(2)
    assert digest_of(module.f) != before


class Reads(Step[Value[int]]):
    """A step whose code reads a value of this module."""

    def run(self, ctx: Any) -> Value[int]:
        """Run."""
        return Value.write(ctx.output, LEVEL)


LEVEL = 1


def test_plan_sees_a_value_that_changed_since_the_last_plan(tmp_path: Any, monkeypatch: pytest.MonkeyPatch):
    first = plan(Reads(), store=tmp_path / "store").steps[0].fingerprint
    monkeypatch.setitem(globals(), "LEVEL", 2)
    assert plan(Reads(), store=tmp_path / "store").steps[0].fingerprint != first
