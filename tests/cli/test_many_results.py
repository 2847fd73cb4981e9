"""`ls`, `show` and `diff` where a step has several results, and where some lie in a store that is read from."""

from pathlib import Path

import pytest

LEARNT = ("run", "counting.py", "--backend", "inline", "--json")


def learned(done) -> dict:
    return next(step for step in done.json["steps"] if step["step"] == "learn")


@pytest.fixture
def swept(marin) -> list[dict]:
    """Three results of one step, the oldest first."""
    return [learned(marin(*LEARNT, "--lr", lr)) for lr in ("0.1", "0.2", "0.3")]


@pytest.fixture
def upstream(marin, swept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The store with the sweep, now read from by a new one that has one more result."""
    monkeypatch.setenv("MARIN_STORE", str(tmp_path / "own"))
    return str(tmp_path / "store")


def test_ls_of_several_results_says_in_which_field_each_differs_from_the_one_before(marin, swept):
    lines = marin("ls", "learn").out.splitlines()
    assert lines[0].split() == ["step", "name", "fingerprint", "type", "size", "made", "by", "change"]
    assert [line.split("  ")[-1] for line in lines[1:3]] == ["lr: 0.2 -> 0.3", "lr: 0.1 -> 0.2"]
    assert "lr" not in lines[3]
    assert all("learn/small" in line for line in lines[1:])


def test_ls_json_has_the_name_and_all_changes_of_each(marin, swept):
    newest, _, oldest = marin("ls", "learn", "--json").json["artifacts"]
    assert newest["changes"] == [{"kind": "config", "path": "lr", "old": 0.2, "new": 0.3}]
    assert (newest["name"], oldest["changes"]) == ("learn/small", [])


def test_ls_counts_further_changes_and_bears_a_recipe_that_is_gone(marin, swept):
    learned(marin(*LEARNT, "--lr", "0.4", "--num-shards", "5"))
    assert marin("ls", "learn").out.splitlines()[1].endswith("and 1 more")
    Path(swept[1]["artifact"], "recipe.json").unlink()
    assert ["lr: 0.2 -> 0.3" in line for line in marin("ls", "learn").out.splitlines()[1:]] == [False] * 4


def test_show_of_several_results_says_that_it_takes_the_newest(marin, swept):
    out = marin("show", "learn").out
    others = [each["fingerprint"][:8] for each in swept[1::-1]]
    (line,) = [line for line in out.splitlines() if line.startswith("  newest ")]
    assert line.split()[1:4] == ["of", "3;", "others:"]
    assert [word for word in line.split() if word in others] == others
    assert swept[2]["fingerprint"] in out
    record = marin("show", "learn", "--json").json
    assert [each["fingerprint"] for each in record["others"]] == [each["fingerprint"] for each in swept[1::-1]]


def test_show_of_one_result_names_no_others(marin, ran):
    assert "newest" not in marin("show", "learn").out
    assert marin("show", "learn", "--json").json["others"] == []


def test_ls_with_read_from_lists_what_both_stores_hold_and_where(marin, upstream, swept):
    mine = learned(marin(*LEARNT, "--lr", "0.4"))
    listed = marin("ls", "learn", "--read-from", upstream, "--json").json["artifacts"]
    assert [each["artifact"] for each in listed] == [mine["artifact"], *(each["artifact"] for each in swept[::-1])]
    assert listed[0]["changes"] == [{"kind": "config", "path": "lr", "old": 0.3, "new": 0.4}]
    assert len(marin("ls", "learn", "--json").json["artifacts"]) == 1
    lines = marin("ls", "learn", "--read-from", upstream).out.splitlines()
    assert [upstream in line for line in lines] == [False, False, True, True, True]


def test_show_and_diff_with_read_from_find_what_another_store_holds(marin, upstream, swept):
    mine = learned(marin(*LEARNT, "--lr", "0.4"))
    old = swept[0]["fingerprint"]
    assert marin("show", old[:12]).code == 2
    shown = marin("show", old[:12], "--read-from", upstream, "--json").json
    assert (shown["fingerprint"], shown["artifact"]) == (old, swept[0]["artifact"])
    assert shown["recipe"]["config"]["notes"] is not None
    compared = marin("diff", old[:12], mine["fingerprint"][:12], "--read-from", upstream, "--json").json
    assert compared["changes"] == [{"kind": "config", "path": "lr", "old": 0.1, "new": 0.4}]
    assert [compared[side]["artifact"] for side in "ab"] == [swept[0]["artifact"], mine["artifact"]]


@pytest.mark.parametrize("verb", [("ls",), ("show", "learn"), ("diff", "learn", "learn")])
def test_a_store_to_read_from_that_is_not_there_exits_with_three(marin, ran, verb, tmp_path: Path):
    done = marin(*verb, "--read-from", str(tmp_path / "nowhere"))
    assert done.code == 3
    assert "there is no store to read from" in done.err
