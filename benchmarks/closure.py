"""How long it takes to plan steps whose code is large: 1,000 steps over a package of 200 modules.

    python benchmarks/closure.py
    python benchmarks/closure.py --steps 5000 --modules 400 --kinds 200

A package is generated whose functions call each other over its modules, so that every kind of step reaches much of it.
A fresh process imports it and plans: cold, with nothing remembered on disk and no bytecode, then warm, as any later
process. The time counts from after `import marin` to the plan's end. The bare loop parses the same files with
`ast.parse` in the same process and does nothing with them.
"""

import argparse
import ast
import importlib
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import marin
from marin.graph.recipe import code_of

FUNCTIONS, WIDTH = 10, 20
"""Functions of a module, and modules of a layer: each layer calls the one below."""
FUNCTION = '''
def work_{number}(rows: list[int], scale: float = {number}.5) -> list[int]:
    """Return rows that were changed a little."""
    found = [row * {number} + LIMIT for row in rows if row % TABLE["{number}"]]
    for index, row in enumerate(found):
        # keep what is large
        if row > LIMIT and index < len(found):
            found[index] = int(row * scale) + {module}
    if len(found) > {limit}:
        found = {near}.work_{near_number}(found[: LIMIT * {number}])
    elif not found:
        found = {far}.work_{far_number}(rows)
    return sorted(found, key=lambda row: (row % {limit}, row))
'''
KIND = """
class Kind{number}(Step[Value[int]]):
    seed: int
    above: tuple[Step[Value[int]], ...] = ()

    def run(self, ctx: Context) -> Value[int]:
        rows = {module}.work_{function}([self.seed, *(ctx.load(step).value for step in self.above)])
        return Value.write(ctx.output, sum(rows))
"""


def generate(folder: Path, num_modules: int, num_kinds: int) -> None:
    """Write the package `bench_lab`."""
    package = folder / "bench_lab"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    for module in range(num_modules):
        layer, place = divmod(module, WIDTH)
        below = [(layer - 1) * WIDTH + (place * 3 + step) % WIDTH for step in (0, 1, 2, 7)] if layer else [module]
        imported = ", ".join(f"m{other}" for other in below)
        text = [f'"""Module {module}."""\n\nfrom bench_lab import {imported}\n\nLIMIT = {module + 2}\n']
        table = {str(number): number + 1 for number in range(FUNCTIONS)}
        text.append(f"TABLE = {table}\n")
        for number in range(FUNCTIONS):
            near, far = below[number % len(below)], below[(number + 1) % len(below)]
            calls = {"near": f"m{near}", "far": f"m{far}", "near_number": (number + 1) % 10, "far_number": 9 - number}
            text.append(FUNCTION.format(number=number, module=module, limit=module + 10, **calls))
        (package / f"m{module}.py").write_text("\n".join(text))
    tops = [num_modules - 1 - kind % WIDTH for kind in range(num_kinds)]
    used = sorted(set(tops))
    text = [f"from bench_lab import {', '.join(f'm{module}' for module in used)}"]
    text.append("from marin import Context, Step, Value\n")
    for kind in range(num_kinds):
        text.append(KIND.format(number=kind, module=f"m{tops[kind]}", function=kind % FUNCTIONS))
    (package / "kinds.py").write_text("\n".join(text))


def pipeline(kinds: Any, num_kinds: int, num_steps: int) -> list[Any]:
    """Return the last steps of chains of ten."""
    last = []
    for chain in range(num_steps // 10):
        step = None
        for place in range(10):
            kind = getattr(kinds, f"Kind{(chain * 10 + place) % num_kinds}")
            step = kind(seed=chain * 10 + place, above=(step,) if step else ())
        last.append(step)
    return last


def measure(folder: Path, num_steps: int, num_kinds: int) -> dict[str, Any]:
    """Import the package and plan, in this process."""
    sys.path.insert(0, str(folder))
    began = time.perf_counter()
    kinds = importlib.import_module("bench_lab.kinds")
    steps = pipeline(kinds, num_kinds, num_steps)
    imported = time.perf_counter()
    planned = marin.plan(steps, store=folder / "store")
    done = time.perf_counter()
    files = sorted((folder / "bench_lab").glob("*.py"))
    texts = [file.read_bytes() for file in files]
    parsing = time.perf_counter()
    for text in texts:
        ast.parse(text)
    bare = time.perf_counter() - parsing
    return {
        "steps": len(planned.steps),
        "files": len(files),
        "lines": sum(text.count(b"\n") for text in texts),
        "definitions": len(code_of(steps[-1]).definitions),
        "import_s": imported - began,
        "plan_s": done - imported,
        "total_s": done - began,
        "bare_s": bare,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


def main() -> None:
    """Measure cold and warm, each in a process of its own, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--modules", type=int, default=200)
    parser.add_argument("--kinds", type=int, default=50, help="classes of steps")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        print(json.dumps(measure(Path(given.child), given.steps, given.kinds)))
        return
    folder = Path(tempfile.mkdtemp(prefix="closure-"))
    try:
        generate(folder, given.modules, given.kinds)
        sizes = ["--steps", str(given.steps), "--modules", str(given.modules), "--kinds", str(given.kinds)]
        environment = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        print(f"{'':>5} {'import':>8} {'plan':>8} {'total':>8} {'bare':>8} {'ratio':>6} {'memory':>8}")
        for name in ("cold", "warm", "warm"):
            command = [sys.executable, __file__, *sizes, "--child", str(folder)]
            ran = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
            row = json.loads(ran.stdout)
            times = " ".join(f"{row[column]:>6.2f} s" for column in ("import_s", "plan_s", "total_s", "bare_s"))
            print(f"{name:>5} {times} {row['total_s'] / row['bare_s']:>6.1f} {row['peak_mb']:>5} MB")
        print(f"{row['steps']} steps, {row['definitions']} definitions in {row['files']} files, {row['lines']:,} lines")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
