"""Clocks that tests move, kills at named points, and the tiny inputs that a user's own tests start from."""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

import marin
from marin import Context, Documents, Shard, Step, Table
from marin.data.documents import iter_texts
from marin.testing import Clock, Clocks, Point, killed, traced, words


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
def script(tmp_path: Path) -> Path:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    (tmp_path / "out").mkdir()
    return path


KILLED = {
    "before the second rename": (Point("os.rename", nth=2), {"before", "one", "two.partial"}),
    "after the second rename": (Point("os.rename", nth=2, after=True), {"before", "one", "two"}),
    "before a path is opened": (Point("open", "*/two.partial"), {"before", "one"}),
}


@pytest.mark.parametrize("name", KILLED)
def test_killed_at_a_named_point(script: Path, name: str):
    point, left = KILLED[name]
    folder = script.parent / "out"
    assert killed(script, [str(folder)], point)
    assert set(os.listdir(folder)) == left


def test_killed_tells_when_the_point_was_not_reached(script: Path):
    folder = script.parent / "out"
    assert not killed(script, [str(folder)], Point("os.rename", nth=4))
    assert set(os.listdir(folder)) == {"before", "one", "two", "three"}
    with pytest.raises(subprocess.CalledProcessError):
        killed(script, [str(folder / "absent")], Point("os.rename"))


def test_traced_lists_the_events_since_the_start(script: Path):
    events = traced(script, [str(script.parent / "out")], script.parent / "trace")
    assert [event[0] for event in events if event[0] == "os.rename"] == ["os.rename"] * 3
    assert events[0] == ["marin.testing.start"]


def test_import_of_the_kit_is_light():
    heavy = "('torch', 'ray', 'pyarrow', 'transformers', 'tokenizers', 'numpy')"
    code = f"import sys, marin.testing; print([name for name in {heavy} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert found == "[]"
