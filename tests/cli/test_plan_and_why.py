"""`marin plan` and `marin why`: states and causes, for people and as JSON."""


def states(planned) -> dict[str, str]:
    return {step["name"]: step["state"] for step in planned["steps"]}


def test_plan_new_store_writes_nothing_and_says_new(marin, tmp_path):
    done = marin("plan", "counting.py")
    assert done.code == 0
    assert not (tmp_path / "store").exists()
    lines = [line.split() for line in done.out.splitlines()]
    assert lines[:3] == [
        ["step", "state", "why"],
        ["numbers", "run", "new"],
        ["learn/small", "unknown", "depends", "on", "numbers"],
    ]
    assert "0 cached, 4 to run or unknown" in done.err


def test_plan_json_new_store_has_the_promised_keys(marin):
    planned = marin("plan", "counting.py", "--json").json
    assert set(planned) == {"schema", "steps", "cached", "to_run", "drift"}
    assert planned["schema"] == 1
    assert (planned["cached"], planned["to_run"], planned["drift"]) == (0, 4, [])
    numbers, learn, *_ = planned["steps"]
    assert set(numbers) == {"name", "step", "state", "recipe", "fingerprint", "cause"}
    assert set(learn) == {"name", "step", "state", "recipe", "cause"}
    assert (learn["name"], learn["step"]) == ("learn/small", "learn")
    assert numbers["cause"] == {"kind": "new", "changes": []}


def test_plan_json_cached_says_who_made_it(marin, ran):
    planned = marin("plan", "counting.py", "--json").json
    assert set(states(planned).values()) == {"cached"}
    for step in planned["steps"]:
        assert set(step) == {"name", "step", "state", "recipe", "fingerprint", "cause", "artifact", "produced"}
        assert set(step["produced"]) == {"run", "at", "user", "commit"}
        assert step["produced"]["run"] == ran.json["run"]
    assert [step["artifact"] for step in planned["steps"]] == [step["artifact"] for step in ran.json["steps"]]


def test_plan_json_changed_option_names_path_and_both_values(marin, ran):
    planned = marin("plan", "counting.py", "--json", "--lr", "0.2").json
    assert states(planned) == {"numbers": "cached", "learn/small": "run", "score": "unknown", "complete": "unknown"}
    cause = planned["steps"][1]["cause"]
    assert set(cause) == {"kind", "changes", "nearest"}
    assert cause["changes"] == [{"kind": "config", "path": "lr", "old": 0.1, "new": 0.2}]


def test_plan_check_exits_with_one_only_when_something_would_run(marin):
    assert marin("plan", "counting.py", "--check").code == 1
    marin("run", "counting.py", "--backend", "inline")
    assert marin("plan", "counting.py", "--check").code == 0


def test_plan_pattern_keeps_matching_steps_and_what_they_need(marin):
    assert list(states(marin("plan", "counting.py", "-k", "learn/*", "--json").json)) == ["numbers", "learn/small"]


def test_plan_values_that_look_like_markup_are_shown_as_they_are(marin, ran):
    done = marin("plan", "counting.py", "--notes", "a[red],[/]")
    assert done.code == 0
    assert "a[red]" in done.out
    assert "[/]" in done.out


def test_why_changed_option_says_the_difference(marin, ran):
    done = marin("why", "counting.py", "learn/small", "--lr", "0.2")
    assert done.out.splitlines()[:2] == ["learn/small: run", "  lr: 0.1 -> 0.2"]
    assert ran.json["run"] in done.out


def test_why_options_may_stand_before_the_step(marin, ran):
    first = marin("why", "counting.py", "--lr", "0.2", "learn/small")
    assert first == marin("why", "counting.py", "learn/small", "--lr", "0.2")


def test_why_step_below_a_change_leads_to_the_first_cause(marin, ran):
    done = marin("why", "counting.py", "score", "--num-shards", "5")
    assert done.out.splitlines() == [
        "score: unknown",
        "  waits for learn/small, numbers",
        "  model > numbers > count: 4 -> 5",
    ]


def test_why_json_has_the_promised_keys(marin, ran):
    why = marin("why", "counting.py", "learn/small", "--lr", "0.2", "--json").json
    assert set(why) == {"schema", "step", "state", "kind", "changes", "nearest"}
    assert why["changes"] == [{"kind": "config", "path": "lr", "old": 0.1, "new": 0.2}]
    cached = marin("why", "counting.py", "learn/small", "--json").json
    assert (cached["state"], cached["changes"], cached["nearest"]) == ("cached", [], None)


def test_why_unknown_step_exits_with_two_and_the_near_name(marin):
    done = marin("why", "counting.py", "learn/smal")
    assert done.code == 2
    assert "did you mean `learn/small`?" in done.err
