"""Targets and their options: every way to name a pipeline, and every way to get it wrong."""

from pathlib import Path

import pytest


@pytest.mark.parametrize(
    "target", ["counting.py", "./counting.py", "counting", "counting:counting", "counting.py:counting"]
)
def test_target_every_spelling_gives_the_same_plan(marin, target):
    assert marin("plan", target, "--json").out == marin("plan", "counting.py", "--json").out


def test_target_file_in_a_package_is_imported_under_its_full_name(marin, tmp_path, monkeypatch):
    by_file = marin("plan", "labs/speech/inner.py:one", "--json")
    assert by_file.code == 0
    assert by_file.out == marin("plan", "labs.speech.inner:one", "--json").out


@pytest.mark.parametrize(
    ("target", "what", "hint"),
    [
        ("countin.py", "there is no file countin.py", "did you mean `counting.py`?"),
        ("no.such.thing", "there is no module `no.such.thing`", "name a file or a module"),
        ("several.py", "several.py has 3 pipelines", "name one: several.py:one, several.py:two, several.py:greedy"),
        ("several.py:tow", "several.py has no pipeline `tow`", "did you mean `two`?"),
        ("empty_module.py", "empty_module.py has no pipelines", "decorate the function"),
        ("unfinished.py", "unfinished.py is no valid Python", "mend that line"),
        ("needs_more.py", "needs_more.py imports `surely_not_installed`", "pip install surely_not_installed"),
        ("misnamed.py", "NameError: name 'y' is not defined", "mend that line"),
        ("several.py:two", "pipeline `two` needs `count`", "add --count"),
        ("several.py:greedy", "parameter `store` of pipeline `greedy`", "rename"),
    ],
)
def test_target_wrong_exits_with_two_and_says_what_to_do(marin, target, what, hint):
    done = marin("plan", target)
    assert done.code == 2
    assert done.out == ""
    assert f"error: {what}" in done.err
    assert f"hint: {hint}" in done.err


def test_target_that_raises_while_built_shows_the_users_line_first(marin):
    done = marin("plan", "several.py:two", "--count", "1")
    assert done.code == 2
    error, place, hint = done.err.splitlines()
    assert error.startswith("error: ZeroDivisionError")
    assert place.endswith("in two")
    assert "--traceback" in hint
    assert "Traceback" in marin("plan", "several.py:two", "--count", "1", "--traceback").err


@pytest.mark.parametrize("spelling", [("--num-shards", "7"), ("--num_shards", "7"), ("--num-shards=7",)])
def test_option_dashes_and_underscores_are_one(marin, spelling):
    assert (
        marin("plan", "counting.py", *spelling, "--json").out
        == marin("plan", "counting.py", "--num-shards", "7", "--json").out
    )


@pytest.mark.parametrize(
    ("options", "what", "hint"),
    [
        (
            ("--lrr", "1"),
            "pipeline `counting` has no option `--lrr`",
            "did you mean `--lr`? its options are --lr, --num-shards, --notes",
        ),
        (("--lrr",), "pipeline `counting` has no option `--lrr`", "did you mean `--lr`?"),
        (("--stroe", "x"), "pipeline `counting` has no option `--stroe`", "did you mean `--store`?"),
        (("--lr", "fast"), "option `lr`", "give --lr a value of type float"),
        (("--lr",), "--lr needs a value", "write --lr VALUE"),
        (("--lr", "1", "--lr", "2"), "--lr is given twice", "give --lr once"),
        (("more",), "Got unexpected extra argument", "`marin plan --help`"),
        (("-x",), "No such option", "`marin plan --help`"),
    ],
)
def test_option_wrong_exits_with_two_and_says_what_to_do(marin, options, what, hint):
    done = marin("plan", "counting.py", *options)
    assert done.code == 2
    assert f"error: {what}" in done.err
    assert f"hint: {hint}" in done.err


def test_option_of_the_verb_misspelt_before_the_target_is_recognised(marin):
    done = marin("plan", "--chekc", "counting.py")
    assert done.code == 2
    assert "hint: did you mean `--check`?" in done.err


def test_option_values_may_look_negative(marin):
    learn = marin("plan", "counting.py", "--lr", "-1", "--json").json["steps"][1]
    assert learn["state"] == "unknown"


def test_option_of_a_bool_alone_says_true(marin):
    Path("flagged.py").write_text(
        "from marin import Context, Step, Value, pipeline\n\n\n"
        "class Flagged(Step[Value[bool]]):\n    big: bool\n    n: int\n\n"
        "    def run(self, ctx: Context) -> Value[bool]:\n        return Value.write(ctx.output, self.big)\n\n\n"
        "@pipeline\ndef flagged(big: bool = False, n: int = 1):\n    return Flagged(big=big, n=n)\n"
    )
    said = marin("plan", "flagged.py", "--big", "true", "--n", "2", "--json")
    assert said.code == 0
    assert marin("plan", "flagged.py", "--big", "--n", "2", "--json").out == said.out
    assert marin("plan", "flagged.py", "--n", "2", "--big", "--json").out == said.out
    assert marin("plan", "flagged.py", "--n", "2", "--json").out != said.out
