"""`marin run`: what a person sees, the JSON, resuming, failures, interrupts."""

import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

INLINE = ("--backend", "inline")
STEP_KEYS = {
    "name",
    "step",
    "state",
    "fingerprint",
    "digest",
    "artifact",
    "attempts",
    "seconds",
    "shards",
    "metrics",
    "error",
}


def states(run) -> dict[str, str]:
    return {step["name"]: step["state"] for step in run["steps"]}


def test_run_json_has_the_promised_keys(ran):
    run = ran.json
    assert ran.code == 0
    assert set(run) == {"schema", "run", "state", "store", "steps"}
    assert all(set(step) == STEP_KEYS for step in run["steps"])
    assert run["steps"][0]["shards"] == {"total": 4, "reused": 0, "computed": 4}
    assert run["steps"][2]["metrics"] == {"bits_per_byte": 1.25}


def test_run_new_pipe_says_each_state_once_and_ends_with_what_to_do(marin):
    done = marin("run", "counting.py", *INLINE)
    assert done.code == 0
    assert done.err.startswith("new run ")
    for name in ("numbers", "learn/small", "score", "complete"):
        assert done.err.count(f"{name} running\n") == 1
        assert done.err.count(f"{name} done in ") == 1
    assert done.err.splitlines()[-1].startswith("4 done in ")
    assert [line.strip().split()[:2] for line in done.err.splitlines()[-4:-1]] == [
        ["marin", "plan"],
        ["marin", "show"],
        ["marin", "ls"],
    ]


def test_run_new_shows_table_curve_scores_and_completions_on_stdout(marin):
    out = marin("run", "counting.py", *INLINE).out
    assert "\x1b" not in out
    assert "loss of learn/small" in out
    assert "200k tokens" in out
    assert "bits per byte 1.250" in out
    assert "  def f(x):\n      return [red]x[/]\n" in out


def test_run_what_a_step_prints_stays_off_stdout(marin):
    done = marin("run", "counting.py", *INLINE, "--json")
    assert done.json["state"] == "done"
    assert "learned all of it" in done.err


def test_run_again_has_nothing_to_do(marin, ran):
    done = marin("run", "counting.py", *INLINE)
    assert done.code == 0
    assert done.err.splitlines()[0] == "nothing to do: all 4 steps are cached"
    assert "bits per byte 1.250" in done.out
    assert "loss of" not in done.out


def test_run_after_a_change_says_that_it_resumes(marin, ran):
    done = marin("run", "counting.py", *INLINE, "--lr", "0.2")
    assert done.err.startswith("resuming: 1 of 4 steps cached (run ")
    again = marin("run", "counting.py", *INLINE, "--num_shards", "5", "--json").json
    assert again["steps"][0]["shards"] == {"total": 5, "reused": 4, "computed": 1}


def test_run_all_cached_in_a_new_process_imports_nothing_heavy(marin, ran, project):
    code = (
        "import sys\nfrom marin.cli.app import call\ncode = call(['run', 'counting.py'])\n"
        "print([name for name in ('ray', 'torch', 'pyarrow') if name in sys.modules])\nsys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "[]"


def test_run_failing_step_names_the_cause_what_is_kept_and_the_next_command(marin):
    done = marin("run", "counting.py", *INLINE, "--lr", "5")
    assert done.code == 1
    lines = done.err.splitlines()
    error = lines.index("error: step learn/small failed: ValueError: lr 5.0 diverges [red]")
    assert lines[error + 1].endswith("in run")
    assert "counting.py:" in lines[error + 1]
    assert lines[error + 2].startswith("hint: ")
    assert "blocked: score, complete: needs learn/small" in lines
    assert any(line.startswith("kept: 1 of 4 steps") for line in lines)
    assert any(line.startswith("then: marin run --backend inline counting.py --lr 5") for line in lines)
    assert len(lines) - error <= 12


def test_run_failing_step_with_traceback_shows_the_attempts_log(marin):
    arguments = ("run", "counting.py", *INLINE, "--lr", "5")
    assert "Traceback" not in marin(*arguments).err
    err = marin(*arguments, "--traceback").err
    assert "Traceback (most recent call last):" in err
    assert 'raise ValueError(f"lr {self.lr} diverges [red]")' in err
    assert err.index("Traceback") < err.index("error: step learn/small failed")


def test_run_failing_step_json_holds_the_error_and_exits_with_one(marin):
    done = marin("run", "counting.py", *INLINE, "--lr", "5", "--json")
    assert done.code == 1
    assert done.json["state"] == "failed"
    assert set(done.json["steps"][1]["error"]) == {"type", "message", "where", "hint"}
    assert states(done.json)["score"] == "blocked"
    assert "error: step learn/small failed" in done.err


def test_run_pattern_runs_matching_steps_and_what_they_need(marin):
    run = marin("run", "counting.py", *INLINE, "-k", "learn", "--json").json
    assert states(run) == {"numbers": "done", "learn/small": "done"}


def test_run_pattern_without_a_match_exits_with_two(marin):
    done = marin("run", "counting.py", *INLINE, "-k", "lern/small")
    assert done.code == 2
    assert "did you mean `learn/small`?" in done.err


def test_run_unknown_backend_exits_with_two(marin):
    assert marin("run", "counting.py", "--backend", "inlin").code == 2


def test_run_store_that_cannot_be_made_exits_with_three(marin, tmp_path):
    (tmp_path / "file").write_text("no folder")
    done = marin("run", "counting.py", *INLINE, "--store", str(tmp_path / "file" / "store"))
    assert done.code == 3
    assert "hint: " in done.err


def test_run_next_commands_repeat_a_store_that_is_not_the_default(marin, tmp_path):
    store = f"{tmp_path}/my store"
    done = marin("run", "counting.py", *INLINE, "--store", store)
    assert f"marin ls --store '{store}'" in done.err


SLOW = """
import sys
from marin import Context, Folder, Step, pipeline


class Wait(Step[Folder]):
    def run(self, ctx: Context) -> Folder:
        print("waiting now", flush=True)
        while True:
            sys.stdin.read(1)


@pipeline
def slow():
    return [Wait()]
"""


def test_run_interrupted_says_what_is_kept_and_exits_with_130(tmp_path):
    (tmp_path / "slow.py").write_text(SLOW)
    command = [sys.executable, "-m", "marin", "run", "slow.py", *INLINE]
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        killer = threading.Timer(60, process.kill)
        killer.start()
        assert process.stderr is not None
        assert any("waiting now" in line for line in process.stderr)
        os.kill(process.pid, signal.SIGINT)
        _, err = process.communicate()
        killer.cancel()
    assert process.returncode == 130, err
    assert "stopping: what is finished is kept" in err
    assert "then: marin run --backend inline slow.py" in err


def test_run_of_what_is_cached_and_refused_does_not_say_that_all_is_well(marin, ran):
    record = Path(os.environ["MARIN_STORE"], "store.json")
    runs = Path(os.environ["MARIN_STORE"], "runs")
    shutil.move(runs, runs.with_name("elsewhere"))
    runs.touch()
    done = marin("run", "counting.py", "--backend", "inline")
    assert done.code == 3
    assert "nothing to do" not in done.err
    assert record.exists()
