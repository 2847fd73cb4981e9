"""Code digests reach what runs: however a definition is named, imported, wrapped or held, its edit is seen."""

import importlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from marin.base.errors import CanonicalError
from marin.graph.code.closure import digest_of
from marin.graph.code.loaded import is_first_party_file

Load = Callable[[dict[str, str]], Any]

G = "def g(x=0):\n    return x + 1\n"
REGEX = "import re\nWORD = re.compile('x + 1')\n"
USE_REGEX = "def f(text):\n    return WORD.findall(text)\n"
CALL_G = "def f():\n    return g()\n"
DECORATOR = (
    "import functools\ndef deco(fn):\n    @functools.wraps(fn)\n    def inner(*a):\n"
    "        return [fn(x + 1) for x in a]\n    return inner\n"
)
SETTINGS = (
    "from dataclasses import dataclass\nimport enum, functools\n"
    "@dataclass(frozen=True)\nclass Settings:\n    n: int\n    def go(self, x=0):\n        return x + 1\n"
    "class Mode(enum.Enum):\n    A = 1\n    def go(self, x=0):\n        return x + 1\n"
    "class Plain:\n    def go(self, x=0):\n        return x + 1\n"
)
FACTORY = "def make(held):\n    def f(x=0):\n        return held(x)\n    return f\n"

# Files whose `f` reaches the text `x + 1`, which is then edited.
REACHED = {
    "import in function": {"helper": G, "main": "def f():\n    import lab.helper\n    return lab.helper.g()\n"},
    "import as in function": {"helper": G, "main": "def f():\n    import lab.helper as h\n    return h.g()\n"},
    "module from package in function": {"helper": G, "main": "def f():\n    from lab import helper\n    helper.g()\n"},
    "from import in function": {"helper": G, "main": "def f():\n    from lab.helper import g as h\n    return h()\n"},
    "relative import in function": {"helper": G, "main": "def f():\n    from .helper import g\n    return g()\n"},
    "imported object": {"helper": REGEX, "main": f"from lab.helper import WORD\n{USE_REGEX}"},
    "imported object, other name": {"helper": REGEX, "main": "from lab.helper import WORD as W\ndef f():\n    W.x\n"},
    "imported object, passed on": {
        "deep": REGEX,
        "helper": "from lab.deep import WORD\n",
        "main": f"from lab.helper import WORD\n{USE_REGEX}",
    },
    "imported object, attribute": {"helper": REGEX, "main": "from lab import helper\ndef f():\n    helper.WORD\n"},
    "star import": {"helper": REGEX, "main": f"from lab.helper import *\n{USE_REGEX}"},
    "import with a fallback": {
        "helper": REGEX,
        "main": f"try:\n    from lab.helper import WORD\nexcept ImportError:\n    WORD = None\n{USE_REGEX}",
    },
    "instance of another module's class": {
        "kinds": SETTINGS,
        "helper": "from lab.kinds import Plain\nWORD = Plain()\n",
        "main": "from lab.helper import WORD\ndef f():\n    return WORD.go()\n",
    },
    "cached function": {"main": f"import functools\n@functools.cache\n{G}{CALL_G}"},
    "cached function, other name": {
        "helper": f"import functools\n@functools.cache\n{G}",
        "main": "from lab.helper import g as h\ndef f():\n    return h()\n",
    },
    "wrapped by a call": {"main": f"{DECORATOR}def plain():\n    return 1\ng = deco(plain)\n{CALL_G}"},
    "wrapped by a decorator": {
        "deco": DECORATOR,
        "main": f"from lab.deco import deco\n@deco\ndef g():\n    pass\n{CALL_G}",
    },
    "wrapped by a library": {"main": f"from contextlib import contextmanager\n@contextmanager\n{G}{CALL_G}"},
    "single dispatch": {
        "main": "import functools\n@functools.singledispatch\ndef g(x=0):\n    pass\n@g.register\ndef _(x: int):\n"
        f"    return x + 1\n{CALL_G}"
    },
    "second closure of one factory": {
        "main": "def adder(n):\n    def add(x):\n        return x + n\n    return add\n"
        "x = 1\none, two = adder(1), adder(x + 1)\ndef f(y):\n    return one(y) * two(y)\n"
    },
    "equal code, other globals": {
        "left": "N = 0\ndef g(y):\n    return y + N\n",
        "right": "N = [x + 1 for x in [0]]\ndef g(y):\n    return y + N\n",
        "main": "from lab import left, right\ndef f(y):\n    return left.g(y) + right.g(y)\n",
    },
    "second lambda of a line": {"main": "a, b = (lambda x: x), (lambda x: x + 1)\ndef f(x):\n    return b(x)\n"},
    "method of a dataclass": {"main": f"{SETTINGS}C = Settings(1)\ndef f():\n    return C.go()\n"},
    "method of an enum member": {"main": f"{SETTINGS}C = Mode.A\ndef f():\n    return C.go()\n"},
    "method of an object in a table": {"main": f"{SETTINGS}T = {{'a': Settings(1)}}\ndef f():\n    T['a'].go()\n"},
    "function in a table": {"main": f"{G}T = {{'a': [g]}}\ndef f():\n    return T\n"},
    "function put into a table": {"main": f"T = {{}}\n{G}T['a'] = g\ndef f():\n    return T['a']()\n"},
    "object put into a table": {"main": "import re\nT = []\nT.append(re.compile('x + 1'))\ndef f():\n    return T\n"},
    "object made in a loop": {"main": "import re\nfor p in ['x + 1']:\n    X = re.compile(p)\ndef f():\n    X.x\n"},
    "object made in a handler": {
        "main": "import re\ntry:\n    import no_such\nexcept ImportError:\n    X = re.compile('x + 1')\n"
        "def f():\n    return X\n"
    },
    "partial": {"main": f"import functools\n{G}P = functools.partial(g, 3)\ndef f():\n    return P()\n"},
    "partial held": {"main": f"import functools\n{G}{FACTORY}f = make(functools.partial(g, 3))\n"},
    "cached function held": {"main": f"import functools\n{G}{FACTORY}f = make(functools.cache(g))\n"},
    "method held": {"main": f"{SETTINGS}{FACTORY}f = make(Settings(1).go)\n"},
    "object held": {"main": f"{SETTINGS}{FACTORY}f = make(Plain())\n"},
    "partial by default": {"main": f"import functools\n{G}def f(p=functools.partial(g, 3)):\n    return p()\n"},
    "class made in a function": {
        "main": "x = 1\ndef make(n):\n    class C:\n        def go(self):\n            return n\n    return C\n"
        "C = make(x + 1)\ndef f():\n    return C().go()\n"
    },
    "class of another branch": {
        "main": "if True:\n    class C:\n        y = [x + 1 for x in '']\nelse:\n    class C:\n        y = 7\n"
        "def f():\n    return C.y\n"
    },
    "nested class": {
        "main": "class A:\n    class B:\n        def go(self, x):\n            return x + 1\nB = A.B\n"
        "def f():\n    return B()\n"
    },
    "named tuple": {
        "main": "from collections import namedtuple\nN = namedtuple('N', ['a', 'x + 1'][:1])\n"
        "def f():\n    return N(1)\n"
    },
    "named tuple, other name": {
        "main": "from collections import namedtuple\nN = namedtuple('Y', ['a', 'x + 1'][:1])\n"
        "def f():\n    return N(1)\n"
    },
    "enum made by a call": {"main": "from enum import Enum\nM = Enum('M', ['A', 'x + 1'])\ndef f():\n    return M.A\n"},
    "dataclass made by a call": {
        "main": "from dataclasses import make_dataclass\nN = make_dataclass('N', ['a', 'x + 1'][:1])\n"
        "def f():\n    return N(1)\n"
    },
}


@pytest.mark.parametrize("files", REACHED.values(), ids=REACHED)
def test_digest_edit_of_what_is_reached_counts(load: Load, files: dict[str, str]):
    first, again = digest_of(load(files).f), digest_of(load(files).f)
    assert first == again
    edited = {name: text.replace("x + 1", "x + 2") for name, text in files.items()}
    assert edited != files
    assert digest_of(load(edited).f).digest != first.digest


def test_digest_library_function_held_counts_by_name(load: Load):
    texts = [f"import json\n{FACTORY}f = make(json.{name})\n" for name in ("dumps", "loads")]
    assert len({digest_of(load({"main": text}).f).digest for text in texts}) == 2


def test_digest_moved_file_keeps_it(load: Load):
    before = load({"main": f"from lab.helper import g\n{CALL_G}", "helper": G})
    digest = digest_of(before.f).digest
    assert digest_of(load({"main": f"from lab.other import g\n{CALL_G}", "other": G}).f).digest == digest


def test_digest_cache_filled_while_running_keeps_it(load: Load):
    module = load({"main": "CACHE = {}\ndef f(x):\n    CACHE[x] = x\n    return CACHE\n"})
    digest = digest_of(module.f).digest
    module.f(1)
    assert digest_of(module.f).digest == digest


def test_digest_value_changed_from_outside_counts(load: Load):
    module = load({"main": "TABLE = {'a': [1]}\nLIMIT = 3\ndef f(x):\n    return TABLE, LIMIT\n"})
    digests = [digest_of(module.f).digest]
    module.TABLE["a"].append(2)
    digests.append(digest_of(module.f).digest)
    module.LIMIT = 4
    digests.append(digest_of(module.f).digest)
    assert len(set(digests)) == 3
    module.LIMIT, module.TABLE["a"][:] = 3, [1]
    assert digest_of(module.f).digest == digests[0]


CHANGED_LATER = {
    "attribute of an object": (f"{SETTINGS}X = Plain()\nX.n = 1\ndef f():\n    return X\n", "X.n = 2"),
    "function of a registry": (
        "class R:\n    def __init__(self):\n        self.items = []\nX = R()\ndef g():\n    return 1\n"
        "def f():\n    return X\n",
        "X.items.append(g)",
    ),
    "attribute of a class": ("class A:\n    k = 1\ndef f():\n    return A.k\n", "A.k = 2"),
    "method of a class": (
        "class A:\n    def go(self): ...\ndef g(self): return 1\ndef f():\n    A().go()\n",
        "A.go = g",
    ),
    "default": ("def f(x=1):\n    return x\n", "f.__defaults__ = (2,)"),
    "code": ("def f():\n    return 1\ndef g():\n    return 2\n", "f.__code__ = g.__code__"),
    "cell": (
        "def make(n):\n    def f():\n        return n\n    return f\nf = make(1)\n",
        "f.__closure__[0].cell_contents = 2",
    ),
    "table": ("T = {'a': [1]}\ndef f():\n    return T\n", "T['a'][0] = 2"),
    "dispatch": (
        "import functools\n@functools.singledispatch\ndef g(x): return 0\ndef h(x): return 1\ndef f(): return g(1)\n",
        "g.register(int, h)",
    ),
}


@pytest.mark.parametrize(("text", "change"), CHANGED_LATER.values(), ids=CHANGED_LATER)
def test_digest_sees_what_is_changed_after_it_was_first_asked_for(load: Load, text: str, change: str):
    module = load({"main": text})
    before = digest_of(module.f)
    assert digest_of(module.f) == before
    exec(change, vars(module))
    assert digest_of(module.f).digest != before.digest


def test_digest_file_edited_while_running_stays_with_what_is_loaded(load: Load):
    module = load({"main": "def f():\n    return 1\n"})
    digest = digest_of(module.f).digest
    Path(module.__file__).write_text("def f():\n    return 2222\n")
    assert (module.f(), digest_of(module.f).digest) == (1, digest)
    importlib.reload(module)
    assert module.f() == 2222
    assert digest_of(module.f).digest != digest


@pytest.mark.parametrize(
    "edited",
    ["def f():\n    return 2222\n", "# moved\n\ndef f():\n    return 1\n", "def f(:\n"],
    ids=["body", "line", "torn"],
)
def test_digest_of_code_that_is_not_what_the_file_says_is_refused(load: Load, edited: str):
    module = load({"main": "def f():\n    return 1\n"})
    Path(module.__file__).write_text(edited)
    with pytest.raises(CanonicalError, match=r"was edited after it was imported|cannot be read again") as caught:
        digest_of(module.f)
    assert "start Python again" in caught.value.hint


def test_digest_of_a_method_that_is_not_what_the_file_says_is_refused(load: Load):
    module = load({"main": "class K:\n    def go(self):\n        return 1\n"})
    Path(module.__file__).write_text("class K:\n    def go(self):\n        return 2222\n")
    with pytest.raises(CanonicalError, match="was edited after it was imported"):
        digest_of(module.K)


def test_digest_method_called_eval_is_no_dynamic_reference(load: Load):
    assert digest_of(load({"main": "def f(model):\n    model.eval()\n"}).f).untracked == ()


def test_digest_object_that_nothing_explains_is_listed(load: Load):
    module = load({"main": f"import threading\n{FACTORY}def give():\n    return make(threading.Lock())\n"})
    assert digest_of(module.give()).untracked == ("lab.main.make.<locals>.f.held: a lock made at run time",)


def test_first_party_is_what_is_not_installed():
    standard = Path(os.__file__).parent
    assert is_first_party_file("/home/ada/my-site-packages-tool/steps.py")
    assert is_first_party_file(f"{standard}-lab/steps.py")
    assert not is_first_party_file(f"{standard}/json/decoder.py")
    assert not is_first_party_file("/home/ada/.venv/lib/site-packages/numpy/linalg.py")
