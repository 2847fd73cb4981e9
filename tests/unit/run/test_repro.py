"""What `marin repro` writes: a pipeline that reads as if typed, the code as it was, the pins, and what is not known."""

import importlib
import json
import sys
import uuid
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from marin import Files, Pick, Records, fs
from marin.base.errors import ConfigurationError, DataError, InputError, StoreError
from marin.base.units import parse_size
from marin.run import api
from marin.run.repro.check import check_inputs, differing_versions, first_difference, rerun
from marin.run.repro.folder import write_repro
from marin.run.repro.lineage import lineage
from marin.run.repro.steps import placed, recorded_steps
from marin.store import Manifest, ParentRef, Store, read_lock
from marin.store.code import write_modules

STEPS = '''"""Steps of a user."""

import enum
from pydantic import SecretStr

from marin import Config, Context, Folder, Placement, Scores, Step, Value
from HELPER import doubled


class Mode(enum.Enum):
    PLAIN = 1
    DOUBLED = 2


class Options(Config):
    mode: Mode = Mode.PLAIN
    names: tuple[str, ...] = ()


class Number(Step[Value[int]]):
    number: int
    options: Options = Options()
    key: Placement[SecretStr | None] = None

    def run(self, ctx: Context) -> Value[int]:
        return Value.write(ctx.output, doubled(self.number) if self.options.mode is Mode.DOUBLED else self.number)


class Add(Step[Value[int]]):
    numbers: dict[str, Step[Value[int]]]
    extra: tuple[Step[Value[int]], ...] = ()

    def run(self, ctx: Context) -> Value[int]:
        return Value.write(ctx.output, sum(ctx.load(each).value for each in (*self.numbers.values(), *self.extra)))


class Size(Step[Scores]):
    number: Step[Value[int]]

    def run(self, ctx: Context) -> Scores:
        return Scores.write(ctx.output, {"size": ctx.load(self.number).value})
'''
HELPER = """def doubled(number):
    return 2 * number
"""


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A user's module with its helper, under names that no other test has."""
    name, folder = f"steps_{uuid.uuid4().hex[:8]}", tmp_path / "project"
    folder.mkdir()
    (folder / f"{name}_helper.py").write_text(HELPER)
    (folder / f"{name}.py").write_text(STEPS.replace("HELPER", f"{name}_helper"))
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.chdir(folder)
    return importlib.import_module(name)


@pytest.fixture
def store(tmp_path: Path) -> str:
    return str(tmp_path / "store")


def made(store: str, *targets: Any, read_from: tuple[str, ...] = ()) -> tuple[Store, Manifest]:
    """Run steps and return the store and the record of the last one."""
    planned = api.plan(list(targets), store=store, read_from=read_from)
    result = api.run_plan(planned, store=store, backend="inline", read_from=read_from)
    api.raise_unless_done(result)
    opened = Store.open(store, write=False, read_from=read_from)
    last = result.steps[-1]
    return opened, opened.find([(last.step, str(last.fingerprint))])[str(last.fingerprint)]


def test_pipeline_reads_as_if_typed_with_parents_first(user: ModuleType, store: str, tmp_path: Path):
    one = user.Number(number=1)
    two = user.Number(number=2, options=user.Options(mode=user.Mode.DOUBLED, names=("a",))).named("second/x=2")
    wanted = user.Add(numbers={"one": one, "it's": two}, extra=(one,)).on(cpus=2, memory="1 GB")
    opened, manifest = made(store, wanted)
    repro = write_repro(opened, manifest, tmp_path / "out")
    assert (
        repro.pipeline.read_text()
        == f'''"""Makes add {manifest.fingerprint[:8]} again, from the records of {store}.

Written by `marin repro`; README.md says how to run it.
"""

import sys
from pathlib import Path

from marin import pipeline

sys.path.insert(0, str(Path(__file__).parent / "code"))  # the source as it was
from {user.__name__} import Add, Mode, Number, Options


@pipeline
def repro():
    """What made add {manifest.fingerprint[:8]}."""
    number = Number(number=1)
    second_x_2 = Number(number=2, options=Options(mode=Mode.DOUBLED, names=("a",))).named("second/x=2")
    add = Add(numbers={{"one": number, "it's": second_x_2}}, extra=(number,)).on(cpus=2, memory="1 GB")
    return [add]
'''
    )
    assert {path.name for path in (tmp_path / "out" / "code").iterdir()} == {
        f"{user.__name__}.py",
        f"{user.__name__}_helper.py",
    }
    assert (tmp_path / "out" / "code" / f"{user.__name__}_helper.py").read_text() == HELPER


def test_pipeline_of_marins_own_steps_needs_no_code(store: str, tmp_path: Path):
    repro = write_repro(*made(store, Records(texts=["a", "b"])), tmp_path / "out")
    text = repro.pipeline.read_text()
    assert "import sys" not in text
    assert 'records = Records(texts=("a", "b"))' in text
    assert not (tmp_path / "out" / "code").exists()


def test_folder_has_recipes_pins_versions_and_a_page(user: ModuleType, store: str, tmp_path: Path):
    corpus = tmp_path / "project" / "corpus"
    corpus.mkdir()
    (corpus / "a.txt").write_text("some text")
    opened, manifest = made(store, Files(url="corpus/*.txt"))
    repro = write_repro(opened, manifest, tmp_path / "out")
    assert f'files=Files(url="{corpus}/*.txt"' in "".join(repro.pipeline.read_text().split())  # long lines are cut
    pins = json.loads((tmp_path / "out" / "pins.json").read_text())["inputs"]
    assert [(each["patterns"], each["files"][0]["path"], each["files"][0]["size"]) for each in pins] == [
        ([f"{corpus}/*.txt"], "a.txt", 9)
    ]
    recipe = json.loads((tmp_path / "out" / "recipe.json").read_text())
    assert (recipe["artifact"], recipe["steps"][0]["recipe"]["step"]) == (manifest.fingerprint, "files")
    assert (tmp_path / "out" / "constraints.txt").read_text() == read_lock(store, str(manifest.producer.lock))
    page = (tmp_path / "out" / "README.md").read_text()
    for said in (manifest.digest, manifest.run, "marin run pipeline.py --store ./store", "1 files from outside"):
        assert said in page


def test_same_records_give_the_same_folder_and_edits_are_kept(user: ModuleType, store: str, tmp_path: Path):
    opened, manifest = made(store, user.Number(number=1))
    repro = write_repro(opened, manifest, tmp_path / "out")
    before = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    write_repro(opened, manifest, tmp_path / "out")
    assert {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()} == before
    repro.pipeline.write_text("mine")
    with pytest.raises(ConfigurationError, match="was edited since"):
        write_repro(opened, manifest, tmp_path / "out")
    assert repro.pipeline.read_text() == "mine"
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("x")
    with pytest.raises(ConfigurationError, match="holds something else"):
        write_repro(opened, manifest, tmp_path / "other")
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["thesis.tex"]


def test_code_is_what_ran_even_when_it_was_edited_since(user: ModuleType, store: str, tmp_path: Path):
    opened, manifest = made(store, user.Number(number=1))
    Path(str(user.__file__)).write_text("broken")
    write_repro(opened, manifest, tmp_path / "out")
    assert (tmp_path / "out" / "code" / f"{user.__name__}.py").read_text().startswith('"""Steps of a user."""')


def test_module_called_pipeline_keeps_its_name(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "pipeline.py").write_text(STEPS.replace("from HELPER import doubled", "doubled = abs"))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "pipeline", raising=False)
    module = importlib.import_module("pipeline")
    repro = write_repro(*made(store, module.Number(number=-1)), tmp_path / "out")
    monkeypatch.delitem(sys.modules, "pipeline")
    assert repro.pipeline.name == "repro_pipeline.py"
    assert "from pipeline import Number" in repro.pipeline.read_text()
    assert first_difference(rerun(repro, backend="inline", address=None)) is None


def test_steps_of_one_name_and_a_package_are_made_again(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    name = f"lab_{uuid.uuid4().hex[:8]}"
    folder = tmp_path / "project" / name / "inner"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").write_text("from .inner.own import Size\n")
    (folder / "__init__.py").write_text("")
    (folder / "own.py").write_text(STEPS.replace("from HELPER", "from ..helper"))
    (folder.parent / "helper.py").write_text(HELPER)
    monkeypatch.syspath_prepend(str(tmp_path / "project"))
    lab = importlib.import_module(f"{name}.inner.own")
    numbers = [lab.Number(number=number) for number in (3, 5, 4)]
    pick = Pick(among=numbers, by=[lab.Size(number=each) for each in numbers], metric="size", highest=True)
    repro = write_repro(*made(store, pick), tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out" / "code" / name).rglob("*.py")) == [
        "__init__.py",
        "__init__.py",
        "helper.py",
        "own.py",
    ]
    assert 'number_2 = Number(number=5).named("number-2")' in repro.pipeline.read_text()
    outcomes = rerun(repro, backend="inline", address=None)
    assert [(outcome.step.name, outcome.equal) for outcome in outcomes] == [
        (name, True) for name in ("number", "number-2", "number-3", "size", "size-2", "size-3", "pick")
    ]


def test_rerun_that_comes_out_different_is_told_at_the_first_step(user: ModuleType, store: str, tmp_path: Path):
    wanted = user.Add(numbers={"a": user.Number(number=1, options=user.Options(mode=user.Mode.DOUBLED))})
    repro = write_repro(*made(store, wanted), tmp_path / "out")
    helper = tmp_path / "out" / "code" / f"{user.__name__}_helper.py"
    helper.write_text(HELPER.replace("2", "3"))
    different = first_difference(rerun(repro, backend="inline", address=None))
    assert different is not None
    assert different.step.name == "number"
    assert [(change.kind, change.path.rpartition(".")[2]) for change in different.changes] == [("code", "doubled")]


def test_inputs_that_changed_are_named_before_anything_runs(user: ModuleType, store: str, tmp_path: Path):
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for name in "abc":
        (corpus / f"{name}.txt").write_text(f"text {name}")
    repro = write_repro(*made(store, Files(url=f"{corpus}/*.txt")), tmp_path / "out")
    check_inputs(repro)
    (corpus / "a.txt").write_text("edited text")
    (corpus / "b.txt").unlink()
    (corpus / "d.txt").write_text("d")
    with pytest.raises(InputError, match=r"a.txt \(changed\), b.txt \(gone\), d.txt \(new\)"):
        check_inputs(repro)
    for path in corpus.iterdir():
        path.unlink()
    with pytest.raises(InputError, match="no file matches"):
        check_inputs(repro)


def test_record_without_a_constructor_is_said_so(user: ModuleType, store: str, tmp_path: Path):
    opened, manifest = made(store, user.Add(numbers={"a": user.Number(number=1)}))
    old = replace(opened.find([("number", manifest.parents[0].fingerprint)])[manifest.parents[0].fingerprint])
    place = fs.join(opened.artifact_folder("number", old.fingerprint), "manifest.json")
    fs.replace(place, replace(old, constructor=None).encode())
    with pytest.raises(DataError, match="number was made by a marin that did not record") as caught:
        write_repro(opened, manifest, tmp_path / "out")
    assert "recipe.json" in caught.value.hint
    assert not (tmp_path / "out").exists()


def test_parent_whose_record_is_gone_is_named_and_may_lie_in_another_store(
    user: ModuleType, store: str, tmp_path: Path
):
    team = str(tmp_path / "team")
    made(team, user.Number(number=1))
    opened, manifest = made(store, user.Add(numbers={"a": user.Number(number=1)}), read_from=(team,))
    with pytest.raises(StoreError, match=r"the record of number .* is gone") as caught:
        write_repro(Store.open(store, write=False), manifest, tmp_path / "out")
    assert "--read-from" in caught.value.hint
    repro = write_repro(opened, manifest, tmp_path / "out")
    assert (tmp_path / "out" / "code" / f"{user.__name__}_helper.py").exists()
    assert "number = Number(number=1)" in repro.pipeline.read_text()


def test_secret_is_named_and_never_written(user: ModuleType, store: str, tmp_path: Path, monkeypatch):
    secret = user.SecretStr("hunter2")
    repro = write_repro(*made(store, user.Number(number=1, key=secret)), tmp_path / "out")
    assert 'Number(number=1, key=SecretStr(environ["KEY"]))' in repro.pipeline.read_text()
    assert "export KEY=..." in (tmp_path / "out" / "README.md").read_text()
    everything = [path for root in (tmp_path / "out", Path(store)) for path in root.rglob("*") if path.is_file()]
    assert not [path for path in everything if b"hunter2" in path.read_bytes()]
    monkeypatch.setenv("KEY", "another")
    assert first_difference(rerun(repro, backend="inline", address=None)) is None


def test_code_records_that_would_write_elsewhere_are_passed_over(user: ModuleType, store: str, tmp_path: Path):
    opened, manifest = made(store, user.Number(number=1))
    modules = write_modules(store, {"../../evil": "x", "/etc/evil": "x", "a..b": "x"})
    hostile = replace(manifest, modules=modules)
    repro = write_repro(opened, hostile, tmp_path / "deep" / "out")
    assert not list(tmp_path.rglob("*evil*"))
    assert any("was not kept: it has to be installed" in note for note in repro.notes)


@pytest.mark.parametrize(
    "constructor",
    [
        {"class": "os:system('x')", "fields": [], "inputs": [], "placement": []},
        {"class": "os:abc", "fields": [["a", {"parent": "nowhere"}]], "inputs": [], "placement": []},
        {"class": "os:abc", "fields": {}, "inputs": [], "placement": []},
        {"class": "os:abc", "fields": [["a"]], "inputs": [], "placement": []},
        {"class": "os:abc", "fields": [], "inputs": [3], "placement": []},
        {"class": 3},
        [],
    ],
    ids=str,
)
def test_record_with_a_damaged_constructor_is_a_named_error(
    user: ModuleType, store: str, tmp_path: Path, constructor: Any
):
    opened, manifest = made(store, user.Number(number=1))
    with pytest.raises(DataError):
        write_repro(opened, replace(manifest, constructor=constructor), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def manifest_named(name: str, number: int, parents: Mapping[str, Manifest]) -> Manifest:
    """Return a record as a worker would write it, without a store."""
    constructor = {
        "class": "steps:Step",
        "fields": [["number", number], *([path, {"parent": path}] for path in parents)],
        "inputs": [],
        "placement": [],
    }
    refs = tuple(ParentRef(path, each.step, each.fingerprint, each.digest) for path, each in parents.items())
    empty: dict[str, Any] = dict.fromkeys(Manifest.__dataclass_fields__)
    known = {"step": "step", "name": name, "parents": refs, "constructor": constructor, "resources": {}}
    return Manifest(**{**empty, **known, "fingerprint": f"{name} {number} {len(parents)}", "digest": name})


@pytest.mark.parametrize(
    ("names", "variables"),
    [
        (["a/b=1", "a b 1"], ["a_b_1", "a_b_1_2"]),
        (["list", "class", "sys", "repro"], ["list_", "class_", "sys_", "repro_"]),
        (["7b", "Größe", "..."], ["step_7b", "gr_e", "step"]),
        (["x", "x", "x-2"], ["x", "x_2", "x_2_2"]),
        (["step", "step"], ["step", "step_2"]),
    ],
)
def test_variables_are_identifiers_and_names_are_unique(names: list[str], variables: list[str]):
    steps = recorded_steps([manifest_named(name, number, {}) for number, name in enumerate(names)])
    assert [step.variable for step in steps] == variables
    assert len({step.name for step in steps}) == len(names)
    assert [step.named for step in steps] == [step.name != "step" for step in steps]


def test_equal_steps_are_written_once():
    same = [replace(manifest_named("a", 1, {}), fingerprint=text) for text in ("x", "y")]
    child = manifest_named("b", 2, {"left": same[0], "right": same[1]})
    steps = recorded_steps([*same, child])
    assert [step.variable for step in steps] == ["a", "b"]
    assert steps[1].parents == {"left": "a", "right": "a"}


def test_lineage_of_a_long_chain_and_of_a_circle_ends(store: str):
    chain = [manifest_named("n", 0, {})]
    for number in range(1, 3000):
        chain.append(manifest_named("n", number, {"before": chain[-1]}))
    known = {each.fingerprint: each for each in chain}

    class Answers(Store):
        def find(self, keys):
            return {fingerprint: known[fingerprint] for _, fingerprint in keys}

    assert lineage(Answers(store), chain[-1]) == chain
    parent = ParentRef("before", "step", chain[1].fingerprint, "n")
    known[chain[0].fingerprint] = replace(chain[0], parents=(parent,))
    assert len(lineage(Answers(store), chain[1])) == 2


def test_placement_is_written_where_it_is_not_as_usual():
    assert placed({"cpus": 1.0, "gpus": 0, "nodes": 1, "retries": 3, "timeout": None}) == ""
    assert placed({"cpus": 0.5, "gpus": 8, "timeout": 60.0, "unknown": 3}) == ".on(cpus=0.5, gpus=8, timeout=60)"


@pytest.mark.parametrize("size", [1, 1500, 2**20, 3 * 10**9, 5 * 2**30, 700 * 10**9 + 1])
def test_memory_is_written_exactly(size: int):
    text = placed({"memory_bytes": size})
    assert parse_size(text.removeprefix('.on(memory="').removesuffix('")')) == size


def test_versions_that_differ_are_named():
    found = differing_versions("pydantic==0.1\nsurely-not-installed==2\n\n# a comment\n")
    assert found[0].startswith("pydantic 0.1, here ")
    assert found[1] == "surely-not-installed 2, here none"
