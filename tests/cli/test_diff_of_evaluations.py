"""`marin diff` of two evaluations, item by item, through the verb and real tables."""

import json

import pytest

LAB = '''
import pyarrow as pa
from pyarrow import parquet

from marin import Context, Scores, Step, pipeline


class Judge(Step[Scores]):
    """Tables as `EvaluateTasks` (or `Evaluate`) writes them, from a string of answers: 1 is right, 0 is wrong."""

    right: str
    kind: str = "items"
    shots: int = 0

    def run(self, ctx: Context) -> Scores:
        make = self.item if self.kind == "items" else self.document
        rows = [make(n, answer == "1") for n, answer in enumerate(self.right)]
        with ctx.output.open(f"{self.kind}.parquet") as file:
            parquet.write_table(pa.Table.from_pylist(rows), file)
        return Scores.write(ctx.output, {"acc": self.right.count("1") / len(self.right)})

    def item(self, n: int, is_right: bool) -> dict:
        likely = [-1.0, -2.0] if is_right else [-2.0, -1.0]
        measures = dict.fromkeys(["acc", "acc_norm", "acc_per_token"], float(is_right))
        return {"task": "planets", "id": str(n), "prompt_digest": f"{self.shots}-{n}", "completion": None, "gold": 0,
                "log_likelihoods": likely, "bytes": [4, 4], "correct": is_right, **measures}

    def document(self, n: int, is_right: bool) -> dict:
        return {"source": "s", "id": str(n), "nats": 1.0 if is_right else 2.0, "bytes": 2, "tokens": 1}


@pipeline
def lab(right: str, kind: str = "items", shots: int = 0):
    return Judge(right=right, kind=kind, shots=shots)
'''


@pytest.fixture
def judged(marin, project):
    """Return what judges by a string of answers, and gives the fingerprint."""
    (project / "judge.py").write_text(LAB)  # the same for all tests: a module is imported once

    def run(right: str, *options: str) -> str:
        done = marin("run", "judge.py", "--backend", "inline", "--json", "--right", right, *options)
        assert done.code == 0, done.err
        return str(done.json["steps"][0]["fingerprint"])[:12]

    return run


def test_diff_of_tasks_gives_each_measure_its_interval_and_counts_who_alone_is_right(marin, judged):
    a, b = judged("1000000011"), judged("0111110011")
    compared = marin("diff", a, b, "--json").json["scores"]
    by_measure = {each["measure"]: each for each in compared["compared"]}
    assert list(by_measure) == ["acc", "acc_norm", "acc_per_token", "bits_per_byte"]
    acc = by_measure["acc"]
    assert (acc["a"], acc["b"], acc["items"]) == (0.3, 0.7, 10)
    assert acc["difference"] == pytest.approx(0.4)
    assert acc["low"] < 0.4 < acc["high"]
    assert (acc["only_a"], acc["only_b"], acc["p"]) == (1, 5, pytest.approx(0.21875))
    assert by_measure["bits_per_byte"]["difference"] == pytest.approx(-0.1 / 0.6931471805599453)
    assert compared["other_prompts"] == 0
    line = next(line for line in marin("diff", a, b).out.splitlines() if line.startswith("planets  acc "))
    assert line.split()[2:6] == ["10", "0.3000", "0.7000", "+0.4000"]
    assert line.split()[-3:] == ["1", "5", "0.219"]


def test_diff_of_tasks_says_what_is_not_paired_and_what_was_asked_otherwise(marin, judged):
    out = marin("diff", judged("1011"), judged("101", "--shots", "2")).out
    assert "1 items are in A alone and left out" in out
    assert "3 items were asked with another prompt" in out
    assert "in B alone" not in out


def test_diff_of_losses_compares_documents(marin, judged):
    a, b = judged("0000", "--kind", "documents"), judged("0101", "--kind", "documents")
    (compared,) = marin("diff", a, b, "--json").json["scores"]["compared"]
    assert (compared["task"], compared["measure"]) == ("all documents", "bits_per_byte")
    assert compared["difference"] == pytest.approx(-0.25 / 0.6931471805599453)
    assert "p" not in compared


def test_diff_of_evaluations_of_two_kinds_or_equal_ones_compares_nothing(marin, judged):
    a = judged("01")
    assert "scores" not in marin("diff", a, judged("01", "--kind", "documents"), "--json").json
    same = marin("diff", a, a, "--json")
    assert json.loads(same.out)["equal"] is True
    assert "scores" not in same.json
