"""Changed code: what plans say of it, `--on-drift`, `marin bless`, and `marin diff`, through edited files."""

import importlib
import linecache
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

LAB = '''"""A step whose code counts, one with a declared version, one below."""

from marin import Context, Step, Value, pipeline

BASE = 3


def double(x: int) -> int:
    return x * 2 + BASE


class Leaf(Step[Value[int]]):
    n: int = 1

    def run(self, ctx: Context) -> Value[int]:
        return Value.write(ctx.output, double(self.n))


def add(x):
    return x + 1


class Vow(Step[Value[int]]):
    version = 1
    leaf: Step[Value[int]]

    def run(self, ctx: Context) -> Value[int]:
        return Value.write(ctx.output, add(ctx.load(self.leaf).value))


class Last(Step[Value[int]]):
    vow: Step[Value[int]]

    def run(self, ctx: Context) -> Value[int]:
        return Value.write(ctx.output, ctx.load(self.vow).value)


@pipeline
def lab(n: int = 1):
    """One chain."""
    return [Last(vow=Vow(leaf=Leaf(n=n)))]
'''
Edit = Callable[[str, str], None]


@pytest.fixture
def edit(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Edit:
    """Write `lab.py` into a folder of this test and return what edits it; each edit is seen as by a new process."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "lab.py"

    def forget() -> None:
        importlib.invalidate_caches()
        linecache.clearcache()
        sys.modules.pop("lab", None)

    def replace(old: str, new: str) -> None:
        text = file.read_text()
        assert old in text
        file.write_text(text.replace(old, new))
        forget()

    file.write_text(LAB)
    forget()
    sys.path_importer_cache.clear()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return replace


def states(marin, *options: str) -> dict[str, str]:
    return {step["name"]: step["state"] for step in marin("plan", "lab.py", "--json", *options).json["steps"]}


def run(marin, *options: str):
    done = marin("run", "lab.py", "--backend", "inline", "--json", *options)
    assert done.code == 0, done.err
    return {step["name"]: step for step in done.json["steps"]}


def test_changed_helper_reruns_and_why_shows_its_lines(marin, edit: Edit):
    run(marin)
    edit("x * 2 + BASE", "x * 3 + BASE")
    assert states(marin) == {"leaf": "run", "vow": "unknown", "last": "unknown"}
    changes = marin("why", "lab.py", "last", "--json").json["changes"]
    assert [(each["kind"], each["path"]) for each in changes] == [("code", "vow > leaf > lab.double")]
    assert changes[0]["lines"] == [
        " def double(x: int) -> int:",
        "-    return x * 2 + BASE",
        "+    return x * 3 + BASE",
    ]


def test_changed_source_under_a_version_is_drift_and_still_a_hit(marin, edit: Edit):
    run(marin)
    edit("return x + 1", "return x + 2")
    planned = marin("plan", "lab.py", "--json").json
    assert {step["state"] for step in planned["steps"]} == {"cached"}
    drift = planned["drift"][0]
    assert (drift["name"], drift["step"], drift["version"]) == ("vow", "vow", 1)
    assert [change["path"] for change in drift["changes"]] == ["lab.add"]
    assert "code drift: vow" in marin("plan", "lab.py").err
    assert marin("plan", "lab.py", "--check", "--on-drift", "fail").code == 1
    assert marin("plan", "lab.py", "--check", "--on-drift", "warn").code == 0


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("return x + 1", "return (x\n            + 1)  # the same"),
        ("def add(x):", "def add(x: int) -> int:"),
        ("return x + 1", '"""Documented."""\n    return x + 1'),
        ("return x * 2 + BASE", "return x * 2 + BASE  # a comment"),
        ("class Last", "UNRELATED = 1\n\n\nclass Last"),
    ],
)
def test_edits_that_change_no_code_are_neither_drift_nor_a_rerun(marin, edit: Edit, old: str, new: str):
    run(marin)
    edit(old, new)
    planned = marin("plan", "lab.py", "--json").json
    assert planned["drift"] == []
    assert {step["state"] for step in planned["steps"]} == {"cached"}


def test_drift_fails_a_run_when_asked_and_where_ci_is_set(marin, edit: Edit, monkeypatch):
    run(marin)
    edit("return x + 1", "return x + 2")
    refused = marin("run", "lab.py", "--backend", "inline", "--on-drift", "fail")
    assert refused.code == 2
    assert "code drift: the source of vow has changed" in refused.err
    assert "hint:" in refused.err
    monkeypatch.setenv("CI", "true")
    assert marin("run", "lab.py", "--backend", "inline").code == 2
    monkeypatch.setenv("CI", "false")
    assert marin("run", "lab.py", "--backend", "inline").code == 0


def test_drift_rerun_makes_the_result_anew_and_what_reads_it(marin, edit: Edit):
    before = run(marin)
    edit("return x + 1", "return x + 2")
    assert states(marin, "--on-drift", "rerun") == {"leaf": "cached", "vow": "run", "last": "unknown"}
    after = run(marin, "--on-drift", "rerun")
    assert {name: step["state"] for name, step in after.items()} == {"leaf": "cached", "vow": "done", "last": "done"}
    assert before["vow"]["fingerprint"] == after["vow"]["fingerprint"]
    assert before["vow"]["digest"] != after["vow"]["digest"]
    again = marin("plan", "lab.py", "--json").json
    assert (again["to_run"], again["drift"]) == (0, [])


def test_drift_found_below_a_parent_that_ran_is_refused_or_rerun_too(marin, edit: Edit):
    run(marin)
    edit("return x + 1", "return x + 2")
    edit("x * 2 + BASE", "BASE + 2 * x")  # another code, the same bytes: vow is asked for only once leaf has run
    failed = marin("run", "lab.py", "--backend", "inline", "--json", "--on-drift", "fail")
    assert failed.code == 1
    steps = {step["name"]: step for step in failed.json["steps"]}
    assert [steps[name]["state"] for name in ("leaf", "vow", "last")] == ["done", "failed", "blocked"]
    assert "code drift" in steps["vow"]["error"]["message"]
    assert {name: step["state"] for name, step in run(marin, "--on-drift", "rerun").items()}["vow"] == "done"


def test_drift_found_below_a_parent_that_ran_is_said_once(marin, edit: Edit):
    run(marin)
    edit("return x + 1", "return x + 2")
    edit("x * 2 + BASE", "BASE + 2 * x")
    done = marin("run", "lab.py", "--backend", "inline", "--on-drift", "warn")
    assert done.code == 0
    said = [line for line in done.err.splitlines() if "code drift" in line]
    assert len(said) == 1
    assert "vow cached: code drift: its source changed under version 1" in said[0]
    again = marin("run", "lab.py", "--backend", "inline", "--on-drift", "warn")
    assert [line for line in again.err.splitlines() if "code drift" in line] == [
        "code drift: vow: its source changed under version 1: lab.add"
    ]


@pytest.mark.parametrize(("on_drift", "code", "state"), [("fail", 1, "failed"), ("rerun", 0, "done")])
def test_drift_of_a_result_that_gc_has_unlisted_is_seen(marin, edit: Edit, on_drift: str, code: int, state: str):
    run(marin)
    edit("return x + 1", "return x + 2")
    time.sleep(1.1)  # times of files are compared in whole seconds
    assert marin("gc", "--apply", "--days", "0", "--grace", "0", "--json").json["unlisted"] == 3
    done = marin("run", "lab.py", "--backend", "inline", "--json", "--on-drift", on_drift)
    assert done.code == code
    assert {step["name"]: step["state"] for step in done.json["steps"]}["vow"] == state


def test_bless_accepts_changed_code_and_undo_takes_it_back(marin, edit: Edit):
    first = run(marin)
    edit("x * 2 + BASE", "BASE + 2 * x")
    assert states(marin)["leaf"] == "run"
    blessed = marin("bless", "lab.py", "leaf", "--reason", "the same sum", "--json").json
    assert blessed["state"] == "cached"
    assert set(states(marin).values()) == {"cached"}
    assert run(marin)["last"]["digest"] == first["last"]["digest"]
    assert "the same sum" in marin("why", "lab.py", "leaf").out
    shown = marin("show", "leaf", "--json").json["blessed"]
    assert [each["reason"] for each in shown] == ["the same sum"]
    assert marin("bless", "leaf", "--undo").code == 0
    assert states(marin)["leaf"] == "run"


def test_bless_ends_drift_and_a_further_edit_is_drift_again(marin, edit: Edit):
    run(marin)
    edit("return x + 1", "return 1 + x")
    assert marin("bless", "lab.py", "vow", "--reason", "commutes").code == 0
    assert marin("plan", "lab.py", "--json").json["drift"] == []
    edit("return 1 + x", "return 2 + x")
    assert [each["name"] for each in marin("plan", "lab.py", "--json").json["drift"]] == ["vow"]
    assert marin("bless", "lab.py", "vow", "--reason", "a chain").code == 0
    assert marin("plan", "lab.py", "--json").json["drift"] == []


def test_bless_of_what_did_not_change_is_refused(marin, edit: Edit):
    run(marin)
    refused = marin("bless", "lab.py", "leaf", "--reason", "why not")
    assert refused.code == 2
    assert "leaf is cached with the code that stands now" in refused.err
    assert marin("bless", "lab.py", "leaf").code == 2
    assert marin("bless", "nobody", "--undo").code == 2


def test_diff_leads_through_parents_to_the_first_cause(marin, edit: Edit):
    first = run(marin)
    second = run(marin, "--n", "2")
    compared = marin("diff", first["last"]["fingerprint"][:12], second["last"]["fingerprint"][:12], "--json").json
    assert compared["changes"] == [{"kind": "config", "path": "vow > leaf > n", "old": 1, "new": 2}]
    assert compared["equal"] is False
    text = marin("diff", first["last"]["fingerprint"][:12], second["last"]["fingerprint"][:12]).out
    assert "  vow > leaf > n: 1 -> 2" in text.splitlines()


def test_diff_shows_changed_code_of_a_parent(marin, edit: Edit):
    first = run(marin)
    edit("BASE = 3", "BASE = 4")
    second = run(marin)
    compared = marin("diff", first["last"]["fingerprint"][:12], second["last"]["fingerprint"][:12], "--json").json
    assert [(each["kind"], each["path"]) for each in compared["changes"]] == [("code", "vow > leaf > lab.BASE")]
    assert compared["changes"][0]["lines"] == ["-BASE = 3", "+BASE = 4"]


def test_repro_has_the_modules_of_the_run_that_made_the_result(marin, edit: Edit, tmp_path: Path):
    run(marin)
    edit("BASE = 3", "BASE = 4")  # only `leaf` reaches it; the code of `last` stays the same
    last = run(marin)["last"]
    done = marin("repro", last["fingerprint"][:12], "-o", str(tmp_path / "again"))
    assert done.code == 0
    assert "BASE = 4" in (tmp_path / "again" / "code" / "lab.py").read_text()


def test_drift_is_shown_with_its_lines_by_why_and_bless(marin, edit: Edit):
    run(marin)
    edit("return x + 1", "return x + 2")
    why = marin("why", "lab.py", "vow", "--json").json
    assert (why["state"], why["kind"]) == ("cached", "drift")
    assert why["changes"][0]["lines"] == [" def add(x):", "-    return x + 1", "+    return x + 2"]
    assert "+    return x + 2" in marin("why", "lab.py", "vow").out
    assert "+    return x + 2" in marin("bless", "lab.py", "vow", "--reason", "as meant").out


def test_invalidated_result_is_the_cause_of_its_rerun(marin, edit: Edit):
    leaf = run(marin)["leaf"]
    marin("invalidate", leaf["fingerprint"][:12], "--reason", "a bad node")
    why = marin("why", "lab.py", "leaf", "--json").json
    assert (why["state"], why["kind"]) == ("run", "missing")
    assert "a bad node" in why["changes"][0]["new"]
    assert "a bad node" in marin("plan", "lab.py").out


def test_invalidate_spares_what_a_pinned_result_was_made_from(marin, edit: Edit):
    steps = run(marin)
    marin("pin", steps["last"]["fingerprint"][:12], "--name", "paper")
    refused = marin("invalidate", steps["leaf"]["fingerprint"][:12])
    assert refused.code == 2
    assert "paper" in refused.err
    assert states(marin)["leaf"] == "cached"


def test_show_finds_a_pin_by_its_name_and_prints_a_value(marin, edit: Edit):
    steps = run(marin)
    marin("pin", steps["last"]["fingerprint"][:12], "--name", "paper")
    shown = marin("show", "paper")
    assert "pinned       paper" in shown.out
    assert "value        6" in shown.out
    assert "parent       vow: vow " in shown.out


def test_diff_of_two_steps_or_an_unclear_name_is_refused(marin, edit: Edit):
    run(marin)
    run(marin, "--n", "2")
    unclear = marin("diff", "leaf", "leaf")
    assert unclear.code == 2
    assert "names 2 artifacts" in unclear.err
