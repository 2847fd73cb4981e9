"""No wrong hit: each kind of code that a function can reach is edited, and its digest must change."""

from collections.abc import Callable
from typing import Any

import pytest

from marin.graph.code.closure import digest_of

Load = Callable[[dict[str, str]], Any]

FACTORY = "def make(held):\n    def f(x=0):\n        return held, x\n    return f\n"
OBJECT = "class O:\n    def __init__(self, n):\n        self.n = n\n"
USE = "def f():\n    return X\n"
MODEL = "from pydantic import BaseModel\nclass Part(BaseModel):\n    a: {hint}\ndef f():\n    return Part(a=1).a\n"
REGISTER = (
    "REGISTRY = {}\ndef register(fn):\n    REGISTRY[fn.__name__] = fn\n    return fn\n"
    "def named(name):\n    def put(fn):\n        REGISTRY[name] = fn\n        return fn\n    return put\n"
)
SUBCLASSES = (
    "class Base:\n    known = {}\n    def __init_subclass__(cls, **options):\n        Base.known[cls.__name__] = cls\n"
)
LOADS = "def f(x):\n    return loads(x)\n"

# name: (files, old, new). `old` becomes `new` in all files.
EDITS: dict[str, tuple[dict[str, str], str, str]] = {
    "regex held": ({"main": f"import re\n{FACTORY}f = make(re.compile('a'))\n"}, "'a'", "'b'"),
    "object held": ({"main": f"{OBJECT}{FACTORY}f = make(O(1))\n"}, "O(1)", "O(2)"),
    "library object held": ({"main":
        f"import random\n{FACTORY}f = make(random.Random(1))\n"}, "Random(1)", "Random(2)"),
    "library object held, elsewhere": (
        {"helper": FACTORY, "main": "import random\nfrom lab.helper import make\nf = make(random.Random(1))\n"},
        "Random(1)",
        "Random(2)",
    ),
    "library object held in a table": (
        {"main": f"import random\n{FACTORY}T = [make(random.Random(1))]\ndef f():\n    return T[0]()\n"},
        "Random(1)",
        "Random(2)",
    ),
    "decorator with an object": (
        {
            "main": "import random\ndef deco(rng):\n    def put(fn):\n        def inner():\n"
                "            return fn, rng\n"
            "        return inner\n    return put\n@deco(random.Random(1))\ndef g():\n    pass\ndef f():\n"
                "    return g()\n"
        },
        "Random(1)",
        "Random(2)",
    ),
    "attribute set after the class": (
        {"main": "class A:\n    k = 1\nA.k = 2\ndef f():\n    return A.k\n"},
        "A.k = 2",
        "A.k = 3",
    ),
    "attribute set by setattr": (
        {"main": "class A:\n    k = 1\nsetattr(A, 'k', 2)\ndef f():\n    return A.k\n"},
        "'k', 2",
        "'k', 3",
    ),
    "attribute set by another module": (
        {
            "helper": "class A:\n    k = 1\n",
            "main": "from lab import helper\nhelper.A.k = 2\ndef f():\n    return helper.A().k\n",
        },
        "A.k = 2",
        "A.k = 3",
    ),
    "method set by another module": (
        {
            "helper": "class A:\n    def go(self):\n        return 0\n",
            "main": "from lab import helper\ndef other(self):\n    return 1\nhelper.A.go = other\n"
            "def f():\n    return helper.A().go()\n",
        },
        "return 1",
        "return 2",
    ),
    "attribute of an object set": ({"main": f"{OBJECT}X = O(1)\nX.n = 2\n{USE}"}, "X.n = 2", "X.n = 3"),
    "attribute of an object set elsewhere": (
        {"helper": f"{OBJECT}X = O(1)\n", "main": f"from lab.helper import X\nX.n = 2\n{USE}"},
        "X.n = 2",
        "X.n = 3",
    ),
    "attribute of a function": (
        {"main": "def g():\n    return g.k\ng.k = 1\ndef f():\n    return g()\n"},
        "g.k = 1",
        "g.k = 2",
    ),
    "registered by a decorator": (
        {"main": f"{REGISTER}@register\ndef a():\n    return 1\ndef f(name):\n    return REGISTRY[name]()\n"},
        "return 1",
        "return 2",
    ),
    "registered in another module": (
        {
            "registry": REGISTER,
            "plugin": "from lab.registry import named\n@named('a')\ndef a():\n    return 1\n",
            "main": "from lab import plugin\nfrom lab.registry import REGISTRY\ndef f(n):\n    return REGISTRY[n]()\n",
        },
        "return 1",
        "return 2",
    ),
    "name of what is registered": (
        {
            "registry": REGISTER,
            "plugin": "from lab.registry import named\n@named('a')\ndef one():\n    return 1\n",
            "main": "from lab import plugin\nfrom lab.registry import REGISTRY\ndef f(n):\n    return REGISTRY[n]()\n",
        },
        "named('a')",
        "named('b')",
    ),
    "registry that is also changed while running": (
        {
            "registry": REGISTER,
            "plugin": "from lab.registry import register\n@register\ndef a():\n    return 1\n",
            "main": "from lab import plugin\nfrom lab.registry import REGISTRY\n"
            "def f(name):\n    REGISTRY.setdefault(name, None)\n    return REGISTRY[name]()\n",
        },
        "return 1",
        "return 2",
    ),
    "registry object": (
        {
            "registry": "class Registry:\n    def __init__(self):\n        self.items = {}\n    def add(self, fn):\n"
            "        self.items[fn.__name__] = fn\n        return fn\nREG = Registry()\n",
            "plugin": "from lab.registry import REG\n@REG.add\ndef a():\n    return 1\n",
            "main": "from lab import plugin\nfrom lab.registry import REG\ndef f(name):\n"
                "    return REG.items[name]()\n",
        },
        "return 1",
        "return 2",
    ),
    "registered by a call": (
        {"main": f"{REGISTER}def a():\n    return 1\nregister(a)\ndef f(name):\n    return REGISTRY[name]()\n"},
        "return 1",
        "return 2",
    ),
    "settings given by a call": (
        {
            "helper": "LIMIT = 1\ndef configure(n):\n    global LIMIT\n    LIMIT = n\n",
            "main": "from lab import helper\nhelper.configure(3)\ndef f():\n    return helper.LIMIT\n",
        },
        "configure(3)",
        "configure(4)",
    ),
    "subclass registered": (
        {"main": f"{SUBCLASSES}class B(Base):\n    def go(self):\n        return 1\ndef f(n):\n"
            f"    return Base.known[n]()\n"},
        "return 1",
        "return 2",
    ),
    "subclass registered elsewhere": (
        {
            "base": SUBCLASSES,
            "plugin": "from lab.base import Base\nclass B(Base):\n    def go(self):\n        return 1\n",
            "main": "from lab import plugin\nfrom lab.base import Base\ndef f(n):\n    return Base.known[n]()\n",
        },
        "return 1",
        "return 2",
    ),
    "subclasses asked for": (
        {"main": "class A:\n    pass\nclass B(A):\n    k = 1\ndef f():\n    return A.__subclasses__()\n"},
        "k = 1",
        "k = 2",
    ),
    "bound by with": ({"main": f"import re, contextlib\nwith contextlib.nullcontext(re.compile('a')) as X:\n"
        f"    pass\n{USE}"}, "'a'", "'b'"),
    "bound in with": ({"main": f"import random\nwith open('/dev/null'):\n    X = random.Random(1)\n"
        f"{USE}"}, "Random(1)", "Random(2)"),
    "bound by for": ({"main": f"import random\nfor X in [random.Random(1)]:\n    pass\n"
        f"{USE}"}, "Random(1)", "Random(2)"),
    "bound by match": (
        {"main": f"import random\nmatch [random.Random(1)]:\n    case [X]:\n        pass\n"
            f"{USE}"}, "Random(1)", "Random(2)"
    ),
    "bound by walrus": ({"main": f"import random\nif (X := random.Random(1)):\n    pass\n"
        f"{USE}"}, "Random(1)", "Random(2)"),
    "bound by unpacking": ({"main": f"import random\n(Y, [X]) = 1, [random.Random(1)]\n"
        f"{USE}"}, "Random(1)", "Random(2)"),
    "bound by global in a function": (
        {"main": f"import random\ndef setup():\n    global X\n    X = random.Random(1)\nsetup()\n{USE}"},
        "Random(1)",
        "Random(2)",
    ),
    "argument of what binds by global": (
        {"main": f"import random\ndef setup(n):\n    global X\n    X = random.Random(n)\nsetup(1)\n{USE}"},
        "setup(1)",
        "setup(2)",
    ),
    "bound through globals()": ({"main": f"import random\nglobals()['X'] = random.Random(1)\n"
        f"{USE}"}, "Random(1)", "Random(2)"),
    "read through globals()": ({"main": "X = 1\ndef f():\n    return globals()['X']\n"}, "X = 1", "X = 2"),
    "changed by a function that is given it": (
        {"main": f"import random\nX = random.Random(0)\ndef seed(rng, n):\n    rng.seed(n)\nseed(X, 1)\n{USE}"},
        "seed(X, 1)",
        "seed(X, 2)",
    ),
    "condition of a definition": (
        {"main": f"import random\nFAST = [1]\nif FAST[0] > 0:\n    X = random.Random(1)\nelse:\n"
            f"    X = random.Random(2)\n{USE}"},
        "FAST = [1]",
        "FAST = [0]",
    ),
    "function of another branch": (
        {"main": "FAST = True\nif FAST:\n    def g():\n        return 1\nelse:\n    def g():\n        return 2\n"
            "def f():\n    return g()\n"},
        "FAST = True",
        "FAST = False",
    ),
    "field of a pydantic model": ({"main": MODEL.format(hint="float")}, "a: float", "a: complex"),
    "class variable of a pydantic model": (
        {"main": "from typing import ClassVar\n" + MODEL.format(hint="int = 1\n    b: ClassVar[int] = 2")},
        "b: ClassVar[int]",
        "b: int",
    ),
    "field of a nested model": (
        {
            "main": "from pydantic import BaseModel\nclass Inner(BaseModel):\n    a: int\nclass Outer(BaseModel):\n"
            "    inner: Inner\ndef f(x):\n    return Outer.model_validate(x)\n"
        },
        "a: int",
        "a: float",
    ),
    "field of a model named in quotes": (
        {
            "main": "from pydantic import BaseModel\nclass Outer(BaseModel):\n    inner: 'list[Inner]'\n"
            "class Inner(BaseModel):\n    a: int\ndef f(x):\n    return Outer.model_validate(x)\n"
        },
        "a: int",
        "a: float",
    ),
    "field of a dataclass": (
        {"main": "from dataclasses import dataclass\n@dataclass\nclass P:\n    a: int\n    b: int = 2\n"
            "def f():\n    return P(1)\n"},
        "    b: int",
        "    b",
    ),
    "order of a dataclass's fields": (
        {"main": "import dataclasses\n@dataclasses.dataclass\nclass P:\n    a: int\n    b: str\ndef f():\n"
            "    return P(1, 2)\n"},
        "    a: int\n    b: str",
        "    b: str\n    a: int",
    ),
    "default factory": (
        {
            "main": "from dataclasses import dataclass, field\ndef fresh():\n    return [1]\n@dataclass\nclass P:\n"
            "    a: list = field(default_factory=fresh)\ndef f():\n    return P()\n"
        },
        "return [1]",
        "return [2]",
    ),
    "default factory's lambda": (
        {
            "main": "from pydantic import BaseModel, Field\nclass P(BaseModel):\n"
            "    a: list = Field(default_factory=lambda: [1])\ndef f():\n    return P()\n"
        },
        "[1]",
        "[2]",
    ),
    "typed named tuple": (
        {"main": "from typing import NamedTuple\nclass N(NamedTuple):\n    a: int\n    b: int\ndef f():\n"
            "    return N(1, 2)._fields\n"},
        "    a: int\n    b: int",
        "    b: int\n    a: int",
    ),
    "typed dict": (
        {
            "main": "from typing import TypedDict\nfrom pydantic import TypeAdapter\nclass D(TypedDict):\n    a: int\n"
            "def f(x):\n    return TypeAdapter(D).validate_python(x)\n"
        },
        "a: int",
        "a: float",
    ),
    "class decorator": (
        {"main": "def deco(kind):\n    kind.k = 1\n    return kind\n@deco\nclass A:\n    pass\ndef f():\n"
            "    return A.k\n"},
        "kind.k = 1",
        "kind.k = 2",
    ),
    "metaclass": (
        {
            "main": "class Meta(type):\n    def __call__(cls):\n        return 1\nclass A(metaclass=Meta):\n    pass\n"
            "class B(A):\n    pass\ndef f():\n    return B()\n"
        },
        "return 1",
        "return 2",
    ),
    "what runs when a subclass is made": (
        {
            "main": "class A:\n    def __init_subclass__(cls):\n        cls.k = 1\nclass B(A):\n    pass\n"
                "def f():\n    return B.k\n"
        },
        "cls.k = 1",
        "cls.k = 2",
    ),
    "property": (
        {"main": "class A:\n    @property\n    def k(self):\n        return 1\n    @k.setter\n"
            "    def k(self, v):\n        pass\ndef f():\n    return A().k\n"},
        "return 1",
        "return 2",
    ),
    "cached property": (
        {"main": "import functools\nclass A:\n    @functools.cached_property\n    def k(self):\n"
            "        return g()\ndef g():\n    return 1\ndef f():\n    return A().k\n"},
        "return 1",
        "return 2",
    ),
    "static and class methods": (
        {"main": "class A:\n    @staticmethod\n    def s():\n        return 0\n    @classmethod\n"
            "    def c(cls):\n        return 1\ndef f():\n    return A.c()\n"},
        "return 1",
        "return 2",
    ),
    "async function": ({"main": "async def g():\n    return 1\nasync def f():\n"
        "    return await g()\n"}, "return 1", "return 2"),
    "async or not": ({"main": "def g():\n    return 1\ndef f():\n    return g()\n"}, "def g()", "async def g()"),
    "generator": ({"main": "def g():\n    yield 1\ndef f():\n    yield from g()\n"}, "yield 1", "yield 2"),
    "async generator": (
        {"main": "async def g():\n    yield 1\nasync def f():\n"
            "    return [x async for x in g()]\n"}, "yield 1", "yield 2"
    ),
    "class in a class": (
        {"main": "class A:\n    class B:\n        k = 1\n    class C:\n        k = 5\ndef f():\n    return A.B.k\n"},
        "k = 1",
        "k = 2",
    ),
    "same-named class in a class": (
        {
            "main": "class A:\n    class K:\n        k = 1\nclass B:\n    class K:\n        k = 5\nK = B.K\n"
            "def f():\n    return K.k\n"
        },
        "k = 5",
        "k = 6",
    ),
    "second of two same-named helpers": (
        {
            "left": "def g():\n    return 0\n",
            "right": "def g():\n    return 1\n",
            "main": "from lab import left, right\ndef f():\n    return left.g() + right.g()\n",
        },
        "return 1",
        "return 2",
    ),
    "same-named helpers swapped": (
        {
            "left": "def g():\n    return 0\n",
            "right": "def g():\n    return 1\n",
            "main": "from lab import left, right\ndef f():\n    return left.g() - 2 * right.g()\n",
        },
        "import left, right",
        "import right as left, left as right",
    ),
    "same-named imports of two inner functions": (
        {
            "left": "def g():\n    return 1\n",
            "right": "def g():\n    return 7\n",
            "main": "def f():\n    def a():\n        from lab.left import g\n        return g()\n"
            "    def b():\n        from lab.right import g\n        return g()\n    return a() + b()\n",
        },
        "return 1",
        "return 2",
    ),
    "hint of a dispatch": (
        {
            "main": "import functools\n@functools.singledispatch\ndef g(x):\n    return 0\n@g.register\n"
            "def _(x: int):\n    return 1\ndef f(x):\n    return g(x)\n"
        },
        "x: int",
        "x: str",
    ),
    "dispatch registered elsewhere": (
        {
            "helper": "import functools\n@functools.singledispatch\ndef g(x):\n    return 0\n",
            "plugin": "from lab.helper import g\n@g.register\ndef _(x: int):\n    return 1\n",
            "main": "from lab import plugin\nfrom lab.helper import g\ndef f(x):\n    return g(x)\n",
        },
        "return 1",
        "return 2",
    ),
    "hint of a dispatch registered elsewhere": (
        {
            "helper": "import functools\n@functools.singledispatch\ndef g(x):\n    return 0\n",
            "plugin": "from lab.helper import g\n@g.register\ndef _(x: int):\n    return 1\n",
            "main": "from lab import plugin\nfrom lab.helper import g\ndef f(x):\n    return g(x)\n",
        },
        "x: int",
        "x: str",
    ),
    "validated argument": (
        {"main": "from pydantic import validate_call\n@validate_call\ndef g(x: float):\n    return x\ndef f():\n"
            "    return g(1)\n"},
        "x: float",
        "x: complex",
    ),
    "hint that the function itself reads": (
        {"main": "import typing\ndef g(x: int):\n    return x\ndef f():\n    return typing.get_type_hints(g)\n"},
        "x: int",
        "x: str",
    ),
    "docstring that the function itself reads": (
        {"main": "def g():\n    '''One.'''\ndef f():\n    return g.__doc__\n"},
        "One.",
        "Two.",
    ),
    "seed set on import": (
        {"main": "import random\nrandom.seed(1)\ndef f():\n    return random.random()\n"}, "seed(1)", "seed(2)"
    ),
    "seed set by an imported module": (
        {"seeds": "import random\nrandom.seed(1)\n", "main": "from lab import seeds\ndef f():\n    return 1\n"},
        "seed(1)",
        "seed(2)",
    ),
    "seed set by a function of our own": (
        {"main": "import random\ndef seed(n):\n    random.seed(n)\nseed(1)\ndef f():\n    return random.random()\n"},
        "seed(1)",
        "seed(2)",
    ),
    "library changed on import": (
        {"main": "import colorsys\ncolorsys.ONE_SIXTH = 1\ndef f(x):\n    return colorsys.rgb_to_hls(*x)\n"},
        "ONE_SIXTH = 1",
        "ONE_SIXTH = 2",
    ),
    "array made of what was read": (
        {"main": "import numpy as np\nn = [1, 2]\nX = {'a': np.array(n)}\ndef f():\n    return X\n"},
        "n = [1, 2]",
        "n = [1, 3]",
    ),
    "attribute that a module makes": (
        {"helper": "def __getattr__(n):\n"
            "    return 1\n", "main": "from lab import helper\ndef f():\n    return helper.x\n"},
        "return 1",
        "return 2",
    ),
    "validator in a hint": (
        {
            "main": "from typing import Annotated\nfrom pydantic import BaseModel, AfterValidator\n"
            "def check(v):\n    return v + 1\nclass M(BaseModel):\n    a: Annotated[int, AfterValidator(check)]\n"
            "def f():\n    return M(a=1)\n"
        },
        "v + 1",
        "v + 2",
    ),
    "hints read by a decorator of our own": (
        {
            "main": "def fields(kind):\n    kind.names = list(kind.__annotations__)\n    return kind\n"
            "@fields\nclass A:\n    a: int\ndef f():\n    return A.names\n"
        },
        "a: int",
        "b: int",
    ),
    "hints read by a base of our own": (
        {
            "main": "class Base:\n    def __init_subclass__(cls):\n        cls.names = list(cls.__annotations__)\n"
            "class A(Base):\n    a: int\ndef f():\n    return A.names\n"
        },
        "a: int",
        "b: int",
    ),
    "object with slots": (
        {
            "main": "class A:\n    __slots__ = ('k',)\n    def __init__(self, k):\n        self.k = k\n"
            "X = A(1)\ndef f():\n    return X.k\n"
        },
        "A(1)",
        "A(2)",
    ),
    "attribute of a module": (
        {"helper": "def g():\n    return 1\n", "main": "import lab.helper\ndef f():\n    return lab.helper.g()\n"},
        "return 1",
        "return 2",
    ),
    "module in a table": (
        {"helper": "def g():\n    return 1\n", "main": "from lab import helper\nT = {'a': helper}\n"
            "def f():\n    return T['a'].g()\n"},
        "return 1",
        "return 2",
    ),
    "module in a tuple, its constant": (
        {"helper": "K = 1\n", "main": "from lab import helper\nT = (helper, 1)\ndef f():\n    return T[0].K\n"},
        "K = 1",
        "K = 2",
    ),
    "module in a partial": (
        {"helper": "def g():\n    return 1\n", "main": "import functools\nfrom lab import helper\n"
            "def call(m):\n    return m.g()\nh = functools.partial(call, helper)\ndef f():\n    return h()\n"},
        "return 1",
        "return 2",
    ),
    "hint read by a signature": (
        {"main": "import inspect\ndef g(x: int):\n    return x\n"
            "def f():\n    return inspect.signature(g).parameters['x'].annotation\n"},
        "x: int",
        "x: str",
    ),
    "hint that a registering decorator dispatches by": (
        {"main": "import inspect\nR = {}\ndef reg(fn):\n"
            "    R[list(inspect.signature(fn).parameters.values())[0].annotation] = fn\n    return fn\n"
            "@reg\ndef g(x: int):\n    return 1\n@reg\ndef h(x: str):\n    return 2\ndef f():\n    return R[int](0)\n"},
        "x: int",
        "x: float",
    ),
    "module handed on": (
        {"helper": "def g():\n    return 1\n",
            "main": "from lab import helper\ndef f():\n    m = helper\n    return m.g()\n"},
        "return 1",
        "return 2",
    ),
    "attribute of a module by a name that varies": (
        {"helper": "def g():\n    return 1\n",
            "main": "from lab import helper\ndef f(n):\n    return getattr(helper, n)()\n"},
        "return 1",
        "return 2",
    ),
    "attribute by a constant name": (
        {"helper": "def g():\n    return 1\n",
            "main": "from lab import helper\ndef f():\n    return getattr(helper, 'g')()\n"},
        "return 1",
        "return 2",
    ),
    "module imported by a constant name": (
        {
            "helper": "def g():\n    return 1\n",
            "main": "import importlib\ndef f():\n    return importlib.import_module('lab.helper').g()\n",
        },
        "return 1",
        "return 2",
    ),
    "module imported by a constant name and kept": (
        {
            "helper": "def g():\n    return 1\n",
            "main": "import importlib\ndef f():\n    m = importlib.import_module('lab.helper')\n    return m.g()\n",
        },
        "return 1",
        "return 2",
    ),
    "library a name comes from": ({"main": f"from json import loads\n{LOADS}"}, "from json", "from pickle"),
    "library function behind another name": (
        {"main": f"from math import floor as loads\n{LOADS}"}, "floor as", "ceil as"
    ),
    "library module behind another name": (
        {"main": "import json as j\ndef f(x):\n    return j.loads(x)\n"}, "import json", "import pickle"
    ),
    "library imported inside": (
        {"main": "def f(x):\n    from json import loads\n    return loads(x)\n"}, "from json", "from pickle"
    ),
    "library through our own module": (
        {"helper": "from json import loads\n",
            "main": "from lab import helper\ndef f(x):\n    return helper.loads(x)\n"},
        "from json",
        "from pickle",
    ),
    "member of an enum": (
        {"main": "import enum\nN = 1\nclass M(enum.Enum):\n    A = N\ndef f():\n    return M.A\n"}, "N = 1", "N = 2"
    ),
    "keyword default": ({"main": "def f(*, x=1):\n    return x\n"}, "x=1", "x=2"),
    "default made by a call": ({
        "main": "def g():\n    return [1]\ndef f(x=g()):\n    return x\n"}, "return [1]", "return [2]"),
    "parameter's kind": ({"main": "def f(x, y=1):\n    return x, y\n"}, "x, y=1", "x, *, y=1"),
    "operator": ({"main": "def f(x):\n    return x < 1\n"}, "<", "<="),
    "text that begins alike": ({"main": "def f(x):\n    return 'ab', 'c'\n"}, "'ab', 'c'", "'a', 'bc'"),
    "f-string's format": ({"main": "def f(x):\n    return f'{x:.1f}'\n"}, ".1f", ".2f"),
    "f-string's conversion": ({"main": "def f(x):\n    return f'{x!r}'\n"}, "!r", "!s"),
    "bytes or text": ({"main": "def f(x):\n    return 'a'\n"}, "'a'", "b'a'"),
    "int or float": ({"main": "def f(x):\n    return 1\n"}, "return 1", "return 1.0"),
    "True or 1": ({"main": "def f(x):\n    return 1\n"}, "return 1", "return True"),
    "negative zero": ({"main": "X = 0.0\ndef f():\n    return X\n"}, "0.0", "-0.0"),
    "object held that changes its own name's module": (
        {"main": "import random\nX = {'a': random.Random(1)}\ndef f():\n    return X\n"}, "Random(1)", "Random(2)"
    ),
    "exception handler's type": (
        {"main": "def f():\n    try:\n        pass\n    except OSError:\n        return 1\n"}, "OSError", "ValueError"
    ),
    "names of the left side": ({"main": "def f(x):\n    a, b = x\n    return a\n"}, "a, b = x", "b, a = x"),
    "super": (
        {"main": "class A:\n    def go(self):\n        return 1\nclass B(A):\n    def go(self):\n"
            "        return super().go()\ndef f():\n    return B().go()\n"},
        "return 1",
        "return 2",
    ),
    "bases swapped": (
        {"main": "class A:\n    k = 1\nclass B:\n    k = 2\nclass C(A, B):\n    pass\ndef f():\n    return C.k\n"},
        "C(A, B)",
        "C(B, A)",
    ),
    "abstract base in another module": (
        {
            "base": "import abc\nclass Base(abc.ABC):\n    @abc.abstractmethod\n    def go(self):\n        return 1\n",
            "main": "from lab.base import Base\nclass A(Base):\n    def go(self):\n        return super().go()\n"
                "def f():\n    return A().go()\n",
        },
        "return 1",
        "return 2",
    ),
}  # fmt: skip


UNNAMED = {"same-named helpers swapped"}
"""Where no definition says anything new: only what two names mean."""


@pytest.mark.parametrize("name", EDITS)
def test_digest_of_edited_code_changes_and_names_what_changed(load: Load, name: str):
    files, old, new = EDITS[name]
    before, again = digest_of(load(files).f), digest_of(load(files).f)
    assert before == again
    edited = {path: text.replace(old, new) for path, text in files.items()}
    assert edited != files
    after = digest_of(load(edited).f)
    assert after.digest != before.digest
    assert (after.definitions == before.definitions) is (name in UNNAMED)
