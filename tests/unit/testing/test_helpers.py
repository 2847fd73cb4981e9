"""Clocks that tests move, kills at named points, and the tiny inputs that a user's own tests start from."""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import marin
from marin import Context, Documents, Shard, Step, Table
from marin.data.documents import iter_texts
from marin.testing import Clock, Clocks, Point, Script, words


def test_clocks_pass_time_together_and_stay_apart():
    clocks = Clocks()
    ada, bob = clocks.driver(skew=600), clocks.driver(skew=-600, pace=1.01)
    clocks.advance(100)
    assert (clocks.true(), ada(), bob()) == (100, 700, pytest.approx(-499))
    with pytest.raises(AssertionError):
        Clock().advance(-1)


def count_shard(shard: Shard, lowercase: bool) -> Mapping[str, int]:
    return Counter(word for text in iter_texts([shard]) for word in (text.lower() if lowercase else text).split())


class CountWords(Step[Table]):
    """Count words."""

    documents: Step[Documents]
    lowercase: bool = True

    def run(self, ctx: Context) -> Table:
        counts: Counter[str] = Counter()
        for each in ctx.map(count_shard, ctx.load(self.documents).shards, lowercase=self.lowercase):
            counts.update(each)
        return Table.write(ctx.output, dict(counts))


def test_words_are_documents_for_a_step_of_ones_own(tmp_path: Path):
    table = marin.run(CountWords(documents=words("a b a", "B")), store=tmp_path, backend="inline")
    assert table.to_dict() == {"a": 2, "b": 2}


SCRIPT = """
import os, sys
folder = sys.argv[1]
for name in ("before", "one", "two", "three"):
    if name == "one":
        sys.audit("marin.testing.start")
    with open(f"{folder}/{name}.partial", "w") as file:
        file.write(name)
    os.replace(f"{folder}/{name}.partial", f"{folder}/{name}")
"""


@pytest.fixture
def out(tmp_path: Path) -> Path:
    folder = tmp_path / "out"
    folder.mkdir()
    return folder


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Script]:
    path = tmp_path_factory.mktemp("script") / "script.py"
    path.write_text(SCRIPT)
    with Script(path) as script:
        yield script


KILLED = {
    "before the second rename": (Point("os.rename", nth=2), {"before", "one", "two.partial"}),
    "after the second rename": (Point("os.rename", nth=2, after=True), {"before", "one", "two"}),
    "before a path is opened": (Point("open", "*/two.partial"), {"before", "one"}),
}


@pytest.mark.parametrize("name", KILLED)
def test_script_is_killed_at_a_named_point(script: Script, out: Path, name: str):
    point, left = KILLED[name]
    assert script.killed([str(out)], point)
    assert set(os.listdir(out)) == left


def test_script_tells_when_the_point_was_not_reached(script: Script, out: Path):
    assert not script.killed([str(out)], Point("os.rename", nth=4))
    assert set(os.listdir(out)) == {"before", "one", "two", "three"}


def test_script_that_fails_of_itself_raises_with_what_it_printed(script: Script, out: Path):
    with pytest.raises(subprocess.CalledProcessError) as caught:
        script.killed([str(out / "absent")], Point("os.rename"))
    assert "FileNotFoundError" in caught.value.output


def test_script_traced_lists_the_events_since_the_start(script: Script, out: Path):
    events = script.traced([str(out)])
    assert [event[0] for event in events if event[0] == "os.rename"] == ["os.rename"] * 3
    assert events[0] == ["marin.testing.start"]


def test_import_of_the_kit_is_light():
    heavy = "('torch', 'ray', 'pyarrow', 'transformers', 'tokenizers', 'numpy')"
    code = f"import sys, marin.testing; print([name for name in {heavy} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert found == "[]"
