"""A folder with pipelines as a user has it, and the command line called in this process."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from marin.cli.app import call

sys.path.insert(0, str(Path(__file__).parent))  # jobserver.py

PIPELINE = '''"""Counts, trains and looks."""

from typing import Annotated

from marin import Context, Folder, Scores, Shard, Step, Table, Value, pipeline


def square(shard: Shard, output) -> dict:
    output.write("n.txt", shard.name.encode())
    return {"square": shard.value ** 2}


class Numbers(Step[Value[int]]):
    count: int

    def run(self, ctx: Context) -> Value[int]:
        shards = [Shard(str(n), f"{n:064x}", (), n) for n in range(self.count)]
        return Value.write(ctx.output, len(ctx.map(square, shards)))


class Learn(Step[Folder]):
    numbers: Step[Value[int]]
    lr: float
    notes: tuple[str, ...]

    def run(self, ctx: Context) -> Folder:
        if self.lr > 1:
            raise ValueError(f"lr {self.lr} diverges [red]")
        for step in range(1, 201):
            ctx.progress(step, 200, "steps")
            ctx.metric(step=step, tokens=step * 1000, loss=8 / (1 + step * self.lr))
        print("learned all of it")
        ctx.output.write("model.bin", b"x" * 1000)
        return Folder.write(ctx.output)


class Score(Step[Scores]):
    model: Step[Folder]

    def run(self, ctx: Context) -> Scores:
        ctx.metric(bits_per_byte=1.25)
        return Scores.write(ctx.output, {"bits_per_byte": 1.25})


class Complete(Step[Table]):
    model: Step[Folder]

    def run(self, ctx: Context) -> Table:
        return Table.write(ctx.output, [{"prompt": "def f(", "completion": "x):\\n    return [red]x[/]"}])


@pipeline
def counting(
    lr: Annotated[float, "peak learning rate"] = 0.1,
    num_shards: Annotated[int, "shards to square"] = 4,
    notes: tuple[str, ...] = (),
):
    """Count, learn, look."""
    model = Learn(numbers=Numbers(count=num_shards), lr=lr, notes=notes).named("learn/small")
    return [Score(model=model), Complete(model=model)]
'''

SEVERAL = """
from marin import Records, pipeline


@pipeline
def one():
    return [Records(texts=["a"])]


@pipeline
def two(count: int):
    return [Records(texts=["a"])] * (count // 0)


@pipeline
def greedy(store: str):
    return [Records(texts=[store])]
"""


class Done(NamedTuple):
    """What a command came to."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Marin = Callable[..., Done]


@pytest.fixture(scope="session")
def _project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for the session: modules are imported under their names, once."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "counting.py").write_text(PIPELINE)
    (folder / "several.py").write_text(SEVERAL)
    (folder / "empty_module.py").write_text("x = 1\n")
    (folder / "unfinished.py").write_text("x = (\n")
    (folder / "needs_more.py").write_text("import surely_not_installed\n")
    (folder / "misnamed.py").write_text("x = y\n")
    package = folder / "labs" / "speech"
    package.mkdir(parents=True)
    for each in (package, package.parent):
        (each / "__init__.py").write_text("")
    (package / "inner.py").write_text(SEVERAL.replace("[store]", "[store, store]"))
    return folder


@pytest.fixture
def project(_project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of pipelines as working folder; the store is new for each test."""
    monkeypatch.chdir(_project)
    monkeypatch.setenv("MARIN_STORE", str(tmp_path / "store"))
    return _project


@pytest.fixture
def marin(project: Path, capfd: pytest.CaptureFixture[str]) -> Marin:
    """Call a verb and return its exit code and what it wrote."""

    def command(*arguments: str) -> Done:
        code = call(list(arguments))
        return Done(code, *capfd.readouterr())

    return command


@pytest.fixture
def ran(marin: Marin) -> Done:
    """A store with one finished run; returns what `marin run --json` said."""
    return marin("run", "counting.py", "--backend", "inline", "--json")
