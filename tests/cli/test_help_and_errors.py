"""Help screens, exit codes, and output as a stranger's pipe gets it."""

import json
import os
import subprocess
import sys

import pytest

import marin as package
from marin.cli.app import VERBS


@pytest.mark.parametrize("verb", VERBS)
def test_help_of_a_verb_fits_a_screen_and_ends_with_two_examples(marin, verb):
    done = marin(verb, "--help")
    lines = done.out.rstrip().splitlines()
    assert done.code == 0
    assert len(lines) < 24
    assert max(map(len, lines)) <= 80
    assert lines[-3].strip() == "Examples:"
    assert all(line.strip().startswith(f"marin {verb}") for line in lines[-2:])


def test_help_lists_the_verbs_that_exist_without_importing_them(project):
    code = (
        "import sys\nfrom marin.cli.app import call\ncall(['--help'])\n"
        "heavy = ('ray', 'torch', 'pyarrow', 'rich.console', 'marin.cli.run_verb')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert all(f"\n  {verb} " in done.stdout for verb in VERBS)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("arguments", [("run", "counting.py", "--help"), ("run", "--store", "s", "counting.py", "-h")])
def test_help_behind_a_target_shows_the_pipelines_options(marin, arguments):
    done = marin(*arguments)
    assert done.code == 0
    lines = [" ".join(line.split()) for line in done.out.splitlines()]
    assert "--lr float peak learning rate; default 0.1" in lines
    assert "--num-shards int shards to square; default 4" in lines
    assert "--notes tuple[str, ...] default empty" in lines


def test_marin_alone_shows_help_and_exits_with_two(marin):
    done = marin()
    assert done.code == 2
    assert done.err.startswith("Usage: marin")
    assert "error:" not in done.err


def test_version_is_the_packages(marin):
    done = marin("--version")
    assert (done.code, done.out) == (0, f"marin, version {package.__version__}\n")


def test_verb_misspelt_exits_with_two_and_the_near_one(marin):
    done = marin("pln")
    assert done.code == 2
    assert done.err == "error: there is no verb `pln`\nhint: did you mean `plan`?\n"


def test_error_as_json_goes_to_stdout_and_stays_readable_on_stderr(marin):
    done = marin("plan", "nothing.py", "--json")
    assert done.code == 2
    assert set(done.json) == {"schema", "error"}
    assert set(done.json["error"]) == {"type", "message", "where", "hint"}
    assert done.json["error"]["type"] == "ConfigurationError"
    assert "error: there is no file nothing.py" in done.err


def test_error_of_a_step_says_which_line_of_the_users_file_made_it(marin, project):
    (project / "wrong.py").write_text(
        """import marin

def shuffled(texts):
    return marin.Shuffle(tokens=marin.Records(texts=texts))

@marin.pipeline
def wrong(seed: int = 0):
    return shuffled(("a",))
"""
    )
    done = marin("plan", "wrong.py", "--json")
    assert done.code == 2
    assert done.err.splitlines()[-2] == f"  at   {project / 'wrong.py'}:4"
    assert json.loads(done.out)["error"]["where"].endswith("wrong.py:4")


def test_output_in_a_pipe_has_no_colour_and_only_data_on_stdout(project, tmp_path):
    command = [sys.executable, "-m", "marin", "run", "counting.py", "--backend", "inline", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert "\x1b" not in done.stdout + done.stderr
    assert json.loads(done.stdout)["state"] == "done"


@pytest.mark.parametrize("arguments", [("ls",), ("ls", "--json"), ("plan", "counting.py")])
def test_output_to_a_reader_that_has_left_is_no_traceback(marin, ran, arguments):
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "marin", *arguments]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False, timeout=60)
    os.close(writing)
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    assert "error:" not in done.stderr
