"""The house keeps its shape: layers, wings, doors, sizes. Each failure names the offender and the rule."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import marin

ROOT = Path(marin.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))

# What each room may import besides itself. Downwards only.
ALLOWED = {
    "base": set(),
    "graph": {"base"},
    "fs": {"base", "graph.files"},
    "model": {"base"},
    "store": {"base", "graph", "fs"},
    "data": {"base", "graph", "fs"},
    "evaluate": {"base", "graph", "fs", "model", "data"},
    "export": {"base", "graph", "fs", "model", "evaluate"},
    "train": {"base", "graph", "fs", "model", "data"},
    "run": {"base", "graph", "fs", "store"},
    "view": {"base", "graph", "fs", "store"},
    "steps": {"base", "graph", "fs", "model", "data", "train", "evaluate", "export"},
    "cli": {"base", "graph", "fs", "store", "run", "view", "steps"},
    "testing": {"base", "graph", "fs", "store", "run", "steps"},
}
SCIENCE = {"model", "data", "train", "evaluate", "export", "steps"}
FORBIDDEN_LIBRARIES = {
    **{room: {"ray"} for room in SCIENCE},
    **{room: {"torch", "transformers"} for room in ("store", "run", "view", "cli", "base", "graph", "fs")},
}
RAY_FILES = {
    "run/backends/ray.py",
    "run/backends/ray_connect.py",
    "run/backends/ray_gang.py",
    "run/backends/ray_placement.py",
    "run/backends/ray_jobs.py",
    "run/backends/ray_lean.py",
    "run/backends/ray_preflight.py",
    "run/backends/ray_watch.py",
    "run/backends/ray_worker.py",
}
# Modules that import at first use, and why: docs/contributing/decisions/0001.
LAZY_DOORS = {
    "base/lazy.py",
    "fs/location.py",  # s3fs is an extra
    "fs/hub.py",  # huggingface_hub is an extra
    "graph/artifact.py",  # Table needs pyarrow when it is read
    "export/parity.py",  # transformers is optional
    "data/sentencepiece_model.py",  # sentencepiece is an extra
    "export/peer.py",  # transformers is optional
    "data/fasttext_model.py",  # fasttext is optional
    "run/api.py",  # the backend that a run asks for
    "run/submit.py",  # Ray's job server
    "cli/app.py",  # one module a verb
    "cli/metric_writers.py",  # tensorboardX and wandb are extras
    "cli/cat_verb.py",  # what is inside an artifact is read by the science wing
}
PRINTING = "cli"
BROAD_EXCEPTS = {
    "run/attempt.py",
    "run/engine.py",
    "cli/app.py",
    "run/rank.py",
    "run/shardwork.py",
    "run/forkserver.py",
}
LONGEST_FILE, LONGEST_FUNCTION, LONGEST_INIT = 400, 60, 120  # the public face has a line a name
LONG_FUNCTIONS: set[str] = set()


def short(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def room_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0] if path.parent != ROOT else ""


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def imported(path: Path) -> Iterator[tuple[str, int]]:
    """Every module that a file imports, local imports too, `from marin import fs` as `marin.fs`."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{short(path)}:{node.lineno}: write absolute imports"
            for alias in node.names:
                below = ROOT.parent / f"{node.module}.{alias.name}".replace(".", "/")
                is_module = below.is_dir() or below.with_suffix(".py").exists()
                yield (f"{node.module}.{alias.name}" if is_module else str(node.module)), node.lineno


@pytest.mark.parametrize("path", [file for file in FILES if room_of(file)], ids=short)
def test_imports_point_downwards_only(path: Path):
    room = room_of(path)
    assert room in ALLOWED, f"marin/{room} is no room of the house"
    for module, line in imported(path):
        if not module.startswith("marin.") or module.split(".")[1] == room:
            continue
        parts = module.split(".")[1:]
        allowed = parts[0] in ALLOWED[room] or ".".join(parts[:2]) in ALLOWED[room]
        assert allowed, f"{short(path)}:{line}: {room} must not import {module}"


def test_no_import_circle():
    graph = {}
    for path in FILES:
        name = "marin." + short(path).removesuffix(".py").replace("/", ".").removesuffix(".__init__")
        graph[name] = {module for module, _ in imported(path) if module.startswith("marin.")} - {name}
    done: set[str] = set()

    def visit(name: str, above: tuple[str, ...]) -> None:
        assert name not in above, f"a circle: {' -> '.join([*above[above.index(name) :], name])}"
        if name in done:
            return
        for other in graph.get(name, ()):
            visit(other, (*above, name))
        done.add(name)

    for name in graph:
        visit(name, ())


@pytest.mark.parametrize("path", FILES, ids=short)
def test_engine_knows_no_torch_and_science_no_ray(path: Path):
    forbidden = set(FORBIDDEN_LIBRARIES.get(room_of(path), ()))
    if short(path) not in RAY_FILES:
        forbidden.add("ray")
    for module, line in imported(path):
        assert module.split(".")[0] not in forbidden, f"{short(path)}:{line}: imports {module}"


@pytest.mark.parametrize("path", FILES, ids=short)
def test_imports_stand_at_the_top_save_the_first_line_of_a_step(path: Path):
    for function in ast.walk(tree(path)):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        inside = [node for node in ast.walk(function) if isinstance(node, ast.Import | ast.ImportFrom)]
        if room_of(path) == "steps" and function.name == "run":
            body = function.body[1:] if ast.get_docstring(function) else function.body
            inside = [node for node in inside if node is not body[0]]
        assert not inside, f"{short(path)}:{inside[0].lineno}: an import inside {function.name}"


@pytest.mark.parametrize("path", FILES, ids=short)
def test_no_type_checking_block(path: Path):
    assert "TYPE_CHECKING" not in path.read_text(), f"{short(path)}: TYPE_CHECKING hides a circle"


@pytest.mark.parametrize("path", FILES, ids=short)
def test_lazy_doors_are_the_named_ones(path: Path):
    lazy = [module for module, _ in imported(path) if module in ("marin.base.lazy", "importlib")]
    # Three files import what the user names: code that a step reaches, the target of a command, a script's imports.
    if lazy and short(path) not in LAZY_DOORS | {"graph/code/loaded.py", "cli/target.py", "testing/kill.py"}:
        users = [getattr(node, "attr", getattr(node, "id", getattr(node, "name", ""))) for node in ast.walk(tree(path))]
        assert "marin.base.lazy" not in lazy, f"{short(path)}: a lazy door that the test does not name"
        assert "import_module" not in users, f"{short(path)}: importlib.import_module is a hidden door"


@pytest.mark.parametrize("path", FILES, ids=short)
def test_files_and_functions_are_short(path: Path):
    lines = path.read_text().count("\n")
    limit = LONGEST_INIT if path.name == "__init__.py" else LONGEST_FILE
    assert lines <= limit, f"{short(path)} has {lines} lines, at most {limit}"
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or 0) - node.lineno + 1
            name = f"{short(path)}:{node.name}"
            assert length <= LONGEST_FUNCTION or name in LONG_FUNCTIONS, f"{name} has {length} lines"


@pytest.mark.parametrize("path", FILES, ids=short)
def test_broad_excepts_stand_at_the_boundaries(path: Path):
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.ExceptHandler) and short(path) not in BROAD_EXCEPTS:
            caught = [child.id for child in ast.walk(node.type) if isinstance(child, ast.Name)] if node.type else [""]
            reraises = any(isinstance(child, ast.Raise) for child in ast.walk(node))
            broad = not node.type or "Exception" in caught or ("BaseException" in caught and not reraises)
            assert not broad, f"{short(path)}:{node.lineno}: catches everything"


@pytest.mark.parametrize("path", FILES, ids=short)
def test_only_the_command_line_prints(path: Path):
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
            assert room_of(path) == PRINTING, f"{short(path)}:{node.lineno}: prints"


@pytest.mark.parametrize("path", FILES, ids=short)
def test_names_say_what_is_inside(path: Path):
    vague = {"utils", "util", "helpers", "common", "manager", "misc"}
    assert path.stem not in vague, f"{short(path)}: this name says nothing"
    assert not path.stem.startswith("base_"), f"{short(path)}: this name says nothing"


@pytest.mark.parametrize("module", ["marin", "marin.steps", "marin.run.api", "marin.cli.app"])
def test_import_is_light(module: str):
    heavy = "('torch', 'ray', 'pyarrow', 'transformers', 'tokenizers', 'numpy')"
    code = f"import sys, {module}; print([name for name in {heavy} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert found == "[]", f"import {module} loads {found}"
