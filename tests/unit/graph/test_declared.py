"""Source digests of steps with a declared version: what they follow, what counts, and those of marin's own steps."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import marin
from marin.graph.code.declared import source_digest
from marin.graph.step import Step

GOLDEN = {
    "Annotate": "1 94c5a6d36f586ad6",
    "AtStep": "1 0b8708ca2ee42881",
    "Chat": "2 e9b6755a83b772b2",
    "CompressionBaseline": "1 7e4b268435d8fe7e",
    "Conversations": "1 6bef39a2cf026f7a",
    "Decontaminate": "1 44ecbc350a7ea457",
    "Deduplicate": "1 95bee8e0e5adafa7",
    "Download": "1 162cd3a7b34220c0",
    "Evaluate": "2 cbfb3a795ae76221",
    "EvaluateHarness": "1 b638174824e7adf1",
    "EvaluateSequences": "1 e2a2a8a660346280",
    "EvaluateTasks": "1 68c3947a81481a37",
    "Export": "2 f4775d7db1606b35",
    "ExportTokens": "1 be3b0bc3fb2c1a12",
    "Files": "4 ee0853765fab9b2e",
    "Filter": "1 d36d07847e3ea764",
    "FineTune": "1 0dfb3aebb9da1fa6",
    "Generate": "2 e0abac8b40b73155",
    "HuggingFace": "2 4ec498ceecd437a5",
    "ImportTokens": "1 57a41a3d26b9303e",
    "Inspect": "2 35d3036a6ae5764b",
    "Items": "1 43a3fca3c90f0f3a",
    "LoadModel": "2 4999afc43bc80631",
    "LoadTokenizer": "1 dd97ade09272b046",
    "MaskPII": "1 0320e950637bc29b",
    "Mix": "1 6b17c85c00eab7f5",
    "MixTokens": "1 7c00ccbda10099bb",
    "Pack": "1 49a7ed595629adb6",
    "Parquet": "1 2b7a5a72503173ed",
    "Pick": "1 b9007f8739b1ee8c",
    "Records": "1 eeb5580a68b46ba7",
    "Shuffle": "2 a70b97a9fa5443e5",
    "Split": "1 a0886cea45dd7962",
    "Tokenize": "2 418a5528b1b33bbc",
    "Train": "1 0b8708ca2ee42881",
    "TrainTokenizer": "1 68384f9e63c26981",
    "Trajectory": "1 d599ac8d011c76a7",
}
"""Source digest of each of marin's own steps, first 16 digits, after its version.

A difference means that code which decides what a step puts out has changed. Decide: does the output still mean the
same, bit for bit where the step promises that? Then write the new digest here. Does it not? Raise the step's `version`
first, so that nobody is handed an old result for the new meaning.
"""


def own_steps() -> dict[str, type[Step]]:
    return {
        name: kind
        for name in vars(marin)
        if isinstance(kind := getattr(marin, name), type) and issubclass(kind, Step) and kind is not Step
    }


def test_every_step_of_marin_declares_a_version_and_its_source_is_the_one_decided_on():
    found = {}
    for name, kind in own_steps().items():
        source = source_digest(kind.__module__, kind.__qualname__)
        assert source is not None
        found[name] = f"{kind.version} {source.digest[:16]}"
    assert found == GOLDEN


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Write files into a package of this test's own; returns what gives the digest of `lab.Vow`."""
    monkeypatch.delitem(sys.modules, "lab", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def digest(**files: str):
        for name, text in files.items():
            file = tmp_path / (name.replace("__", "/") + ".py")
            file.parent.mkdir(exist_ok=True)
            (file.parent / "__init__.py").touch()
            file.write_text(text)
        importlib.invalidate_caches()
        return source_digest("lab.step", "Vow")

    return digest


STEP = """
from lab import tools
from lab.config import Schedule
from lab.numbers import BASE as base

class Vow:
    version = 1
    schedule: Schedule

    def run(self, ctx):
        from lab.late import finish
        return finish(tools.deep.double(base), self.schedule)
"""
FILES = {
    "lab__step": STEP,
    "lab__tools": "from lab import deep\n",
    "lab__deep": "import json\n\ndef double(x):\n    return helper(x) * 2\n\n"
    "def helper(x):\n    return json.loads('1')\n",
    "lab__numbers": "BASE = 3\nOTHER = 4\n",
    "lab__late": "def finish(x: 'int', schedule):\n    return x\n",
    "lab__config": "class Schedule:\n    def lr(self, step):\n        return step\n",
}


def test_source_digest_follows_modules_late_imports_and_classes_of_fields(package):
    found = package(**FILES)
    assert sorted(found.definitions) == [
        "lab.config.Schedule",
        "lab.deep.double",
        "lab.deep.helper",
        "lab.late.finish",
        "lab.numbers.BASE",
        "lab.step.Vow",
    ]
    assert found.texts["lab.numbers.BASE"] == "BASE = 3"
    assert found.modules["lab.numbers"] == FILES["lab__numbers"]


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("lab__deep", "* 2", "* 3"),
        ("lab__deep", "json.loads('1')", "json.loads('2')"),
        ("lab__numbers", "BASE = 3", "BASE = 4"),
        ("lab__late", "return x", "return -x"),
        ("lab__config", "return step", "return -step"),
        ("lab__step", "version = 1", "version = 2"),
    ],
)
def test_source_digest_changes_with_what_is_reached(package, file: str, old: str, new: str):
    before = package(**FILES).digest
    assert package(**{file: FILES[file].replace(old, new)}).digest != before


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("lab__numbers", "OTHER = 4", "OTHER = 5"),
        ("lab__deep", "return helper(x) * 2", "return (helper(x)\n            * 2)  # twice"),
        ("lab__late", "x: 'int'", "x: 'float'"),
        ("lab__config", "    def lr", '    """A schedule."""\n\n    def lr'),
    ],
)
def test_source_digest_stays_for_what_is_not_reached_and_for_looks(package, file: str, old: str, new: str):
    before = package(**FILES).digest
    assert package(**{file: FILES[file].replace(old, new)}).digest == before


def test_source_digest_stays_when_a_definition_moves(package):
    before = package(**FILES).digest
    moved = package(lab__far="BASE = 3\n", lab__step=STEP.replace("lab.numbers", "lab.far"))
    assert moved.digest == before


def test_source_digest_of_train_imports_no_torch():
    text = (
        "import sys, marin; from marin.graph.code.declared import source_digest\n"
        "source_digest('marin.steps.train', 'Train')\n"
        "assert 'torch' not in sys.modules and 'pyarrow' not in sys.modules and 'ray' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", text], check=True, timeout=60)


def test_source_digest_of_a_class_without_a_file_is_none():
    assert source_digest("nowhere.at_all", "X") is None
    assert source_digest("marin.steps.train", "Nothing") is None
