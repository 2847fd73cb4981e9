"""The normal form of source text is the same on every Python: golden digests, compared on each that is at hand.

Those of 3.14 were compared on CPython built for wasm. A digest here may change only when all recipes are to change: it
reruns everything.
"""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import marin
from marin.graph.code.source import parse, to_json

SNIPPETS = {
    "constants": (
        "A = 1_000, 0x10, 1.5e-7, 1e400, 2j, -0.0, True, None, ..., b'\\x00a', 'a\\n\\u00e9\\ud800', 10**40\n"
    ),
    "long number": "A = 9999999999999999999999999999999999999999\n",
    "f-strings": 'B = f"{A!r:>{A}} and {os.sep}" "joined" f"" f"{x=}{x = !s:.{n}f}{{}}" rf"\\d{x}"\n',
    "f-string format": 'C = f"{x:}{y:%Y-%m-%d}{z:{w}.{p}}" f"{a}" "b" f"c{d}"\n',
    "f-string nested": "D = f\"{f'{x}' + 'y'}{lambda_(x)}{(lambda: 1)()}{ {1: 2}[1] }\"\n",
    "f-string lines": 'E = f"""a\n{x}\n  b{y:\\n}"""\n',
    "arguments": "def f(a, /, b: int = 2, *args: str, c=3.5, d, **kw: dict) -> 'int':\n    return a\n",
    "lambda": "g = lambda a, /, b=1, *c, d=2, **e: (a, b, c, d, e)\n",
    "docstrings": (
        'def f():\n    """Doc\n      indented."""\n    x = 1\n    """Not at the top."""\nclass C:\n    """Doc."""\n'
    ),
    "decorators": (
        "@a.b(c, d=e)\n@f\nasync def g():\n    await h\n    async with i as j, k: pass\n    async for l in m: yield l\n"
    ),
    "classes": (
        "class C(A, B[int], metaclass=M, **k):\n    x: int\n    y: int = 3\n    (z): int = 4\n"
        "    def m(self): return super().m()\n    class D: pass\n"
    ),
    "match": (
        "match a, b:\n    case [1, *rest] if rest: pass\n    case {'k': v, **more}: x = v\n"
        "    case C(1, y=z) | None as w: pass\n    case -1 | 'a' | b.c: pass\n    case _: pass\n"
    ),
    "try": (
        "try:\n    a\nexcept (B, C) as d:\n    raise E from d\nexcept F:\n    pass\nelse:\n    g\nfinally:\n    h\n"
    ),
    "exception groups": "def f():\n    try:\n        a\n    except* B as c:\n        d\n",
    "comprehensions": (
        "x = [a for a in b if c for d in a], {a: b for a, b in c}, {a async for a in b}, (y := 1 for _ in z)\n"
    ),
    "scopes": (
        "def f(a):\n    global b\n    b = c = a\n    def g():\n        nonlocal c\n        c += d\n"
        "        return [a for a in e], h.i\n    import j.k, l as m\n    from .n import o as p\n"
        "    return g, j.k.q, m.r, p\n"
    ),
    "changes": (
        "def f(a):\n    A.b = 1\n    C['d'].e.append(2)\n    a.g[3] = 4\n    del H[5]\n"
        "    setattr(I, 'j', 6)\n    K += 1\n"
    ),
    "statements": (
        "for a in b:\n    break\nelse:\n    c\nwhile d: continue\nwith e as (f, g), h: pass\n"
        "del i, j[k:l:m, ...]\nassert n, o\nif p: q\nelif r: s\nelse: t\n"
    ),
    "operators": (
        "a = not b and c or d if e < f <= g is not h not in i else ~j ** -k // l % m @ n << o & p ^ q | r\n"
        "a @= b; a //= c\n"
    ),
    "starred": "a, *b = *c, d\nf(*a, b, *c, d=e, **g, **h)\nx = [*a, *b], {**a, 'b': c}, a[*b]\n",
    "imports": (
        "import a.b.c, d as e\nfrom f import g, h as i\nfrom . import j\nfrom ..k import l\n"
        "from m import *\nif a: import n\ntry: import o\nexcept ImportError: o = None\n"
    ),
    "by name": (
        "def f(x, n):\n    getattr(x, 'a'), getattr(x, n), getattr(x.b, 'c', 1)\n"
        "    import_module('p.q').r, import_module(n), globals()['s']\n    x.__annotations__, x.__doc__\n"
    ),
    "registry": (
        "T = {}\ndef reg(f):\n    T[f.__name__] = f\n    return f\ndef both(f): return reg(f)\n@both\n"
        "def a(): pass\nreg(a)\nA.k = 1\nX.fill(T)\n"
    ),
    "generator": "def f():\n    x = yield\n    y = yield from g()\n    return (yield x), y\n",
    "deep": "a = " + " + ".join(["b"] * 400) + "\n",
    "annotations": (
        "x: int = 1\ny: str\nself.z: list[int] = []\ndef f(a: 'C.D', *b: int) -> lambda: 1:\n"
        "    c: int = a\n    d: str\n    return c\n"
    ),
    "unicode": "é = 'ﬁ'\nﬁ = é\n",
    "line ends": "a = '''b\r\nc'''\r\ndef f():\r\n    return a\r\n",
    "form feed": "\x0c\ndef f():\n    return 1\n\x0c\ndef g():\n    return 2\n",
    "semicolons": "a = 1; b = 2; \nif a: b; c\n",
    "print": "print('a', sep='')\n",
    "type parameters (3.12)": (
        "type A[T: int, *U, **P] = list[T]\ndef f[T](x: T) -> T:\n    y: T = x\n    return T, x\n"
        "class C[T](B[T]):\n    x: T\n"
    ),
    "f-string quotes (3.12)": "a = f'{x['y']}{'\\n'.join(z)}{f'{f'{1}'}'}'\n",
    "type parameter defaults (3.13)": "def f[T = int](x: T): return x\ntype A[T = str] = T\n",
    "template string (3.14)": "a = t'b{c!r:>{d}}e'\n",
    "except without parentheses (3.14)": "def f():\n    try:\n        a\n    except B, C:\n        d\n",
}
"""Source texts by what they are about; of newer syntax, with the Python that first parses it."""
GOLDEN = {
    "constants": "5ea999868c079066",
    "long number": "6b62160f68130ca0",
    "f-strings": "e29ba40fc14df27c",
    "f-string format": "eaff55c429178ebd",
    "f-string nested": "8cfa900fa93e7763",
    "f-string lines": "bfab05685787fb38",
    "arguments": "b4e360712ea7879f",
    "lambda": "58acdaea117d0fe5",
    "docstrings": "f1d2c4b9d1c21dab",
    "decorators": "839288c7b0e6c320",
    "classes": "a039431af08a6256",
    "match": "050d01f92be0d757",
    "try": "6f04f706ecee1703",
    "exception groups": "45f2112b1ef7f7ca",
    "comprehensions": "c7f8bae6c6020f20",
    "scopes": "d00ff030b8c1f057",
    "changes": "388f95358145f030",
    "statements": "558bb515b18d6c9e",
    "operators": "17db7d01bb3f1207",
    "starred": "015730d57dd0f079",
    "imports": "49f6a6394e9c19b9",
    "by name": "f9ae48df1451d88b",
    "registry": "fe4e953721815f28",
    "generator": "ac6fe8ff990baf1a",
    "deep": "b7cadd032fc5ce4b",
    "annotations": "52753fc8994a6472",
    "unicode": "4fe5c64d759b5cf0",
    "line ends": "5666d138898ed196",
    "form feed": "3ac93f5725bb4d73",
    "semicolons": "b990fe45b223f09c",
    "print": "5278d6201556106d",
    "type parameters (3.12)": "97d38dc47f4d91ca",
    "f-string quotes (3.12)": "c718f871eeb70c2d",
    "type parameter defaults (3.13)": "e90f9effa6bc572c",
    "template string (3.14)": "93a82dd9c97653b6",
    "except without parentheses (3.14)": "82a95f9970bd0cde",
}

PRINT_FORMS = """
import json, sys, types, warnings
warnings.simplefilter("ignore")
package = types.ModuleType("marin")
package.__path__ = [sys.argv[1]]
sys.modules["marin"] = package
from marin.graph.code.source import parse, to_json
found = {}
for name, text in json.load(sys.stdin).items():
    try:
        found[name] = to_json(parse(text))
    except SyntaxError:
        pass
print(json.dumps(found))
"""


def digest(said: list[object]) -> str:
    """The digest of all that the pieces of a source say, save their lines, and of what they bind."""
    first, last = 2, 4
    pieces = [[*piece[:first], *piece[last:]] for piece in said[0]]  # type: ignore[attr-defined]
    text = json.dumps([pieces, said[1]])
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def pythons() -> list[str]:
    """Other Pythons that are installed here: `python3.12` on the path, and those of pyenv."""
    named = [f"python3.{minor}" for minor in range(12, 20)]
    places = [Path(folder) for folder in os.environ.get("PATH", "").split(os.pathsep) if "shims" not in folder]
    found = [place / name for place in places for name in named if (place / name).is_file()]
    found += sorted(Path.home().glob(".pyenv/versions/3.1[2-9]*/bin/python"))
    return [str(path) for path in dict.fromkeys(path.resolve() for path in found)]


def said_by(python: str) -> dict[str, list[object]]:
    """What each snippet says under a Python, those left out that it cannot parse."""
    command = [python, "-c", PRINT_FORMS, str(Path(marin.__file__).parent)]
    answer = subprocess.run(command, input=json.dumps(SNIPPETS), capture_output=True, text=True, check=True)
    return dict(json.loads(answer.stdout))


@pytest.mark.parametrize("name", [name for name in SNIPPETS if "(3." not in name])
def test_normal_form_is_the_golden_one(name: str):
    assert digest(json.loads(json.dumps(to_json(parse(SNIPPETS[name]))))) == GOLDEN[name]


@pytest.mark.parametrize("python", [sys.executable, *pythons()])
def test_normal_form_is_the_same_under_another_python(python: str):
    found = {name: digest(said) for name, said in said_by(python).items()}
    assert len(found) >= len([name for name in SNIPPETS if "(3." not in name])
    assert found == {name: GOLDEN[name] for name in found}


def test_normal_form_tells_every_snippet_from_every_other():
    assert len(set(GOLDEN.values())) == len(GOLDEN) == len(SNIPPETS)


def test_normal_form_of_a_deep_expression_is_no_recursion_error():
    deep = " + ".join(["x"] * 3000)
    forms = [parse(f"A = {deep}{more}\n").pieces[0].form for more in ("", " + x", "")]
    assert forms[0] == forms[2] != forms[1]


@pytest.mark.parametrize("text", ["def f(:", "x = (", "\0", "print 1"])
def test_text_that_is_no_python_is_a_syntax_error(text: str):
    with pytest.raises((SyntaxError, ValueError)):
        parse(text)
