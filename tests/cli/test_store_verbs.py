"""`ls`, `show`, `logs`, `status`, `doctor`: what a store holds and how runs stand."""

import json
import subprocess
import sys
from pathlib import Path

import pytest


def test_ls_lists_artifacts_and_keeps_lines_whole(marin, ran):
    lines = marin("ls").out.splitlines()
    assert lines[0].split() == ["step", "fingerprint", "type", "size", "made", "by"]
    assert {line.split()[0] for line in lines[1:]} == {"numbers", "learn", "score", "complete"}


def test_ls_json_has_the_promised_keys_and_picks_a_step(marin, ran):
    listed = marin("ls", "learn", "--json").json
    assert set(listed) == {"schema", "store", "artifacts"}
    (artifact,) = listed["artifacts"]
    assert set(artifact) == {
        *("step", "fingerprint", "digest", "type", "bytes", "artifact", "run", "user", "at"),
        *("pinned", "name", "changes"),
    }
    assert artifact["bytes"] == 1000


@pytest.mark.parametrize("verb", [("ls",), ("show", "learn"), ("status",), ("logs",)])
def test_verbs_that_read_exit_with_three_when_there_is_no_store(marin, verb):
    done = marin(*verb)
    assert done.code == 3
    assert "there is no store at" in done.err
    assert "hint: run a pipeline first" in done.err


def test_show_finds_an_artifact_by_step_name_fingerprint_path_and_name_in_a_run(marin, ran):
    step = ran.json["steps"][1]
    ways = ("learn", "learn/small", step["fingerprint"][:8], step["artifact"])
    shown = [marin("show", way, "--json").json for way in ways]
    assert all(each == shown[0] for each in shown)
    assert set(shown[0]) == {
        "schema",
        "step",
        "artifact",
        "type",
        "fingerprint",
        "digest",
        "bytes",
        "shards",
        "files",
        "metrics",
        "meta",
        "produced",
        "recipe",
        "source",
        "parents",
        "pinned",
        "blessed",
        "others",
    }
    assert shown[0]["fingerprint"] == step["fingerprint"]
    assert shown[0]["metrics"]["tokens"] == 200_000


def test_show_prints_files_numbers_and_configuration(marin, ran):
    out = marin("show", "learn").out
    assert out.startswith("Folder of learn, 1.0 kB\n")
    for part in ("model.bin", "loss 0.38", ran.json["run"]):
        assert part in out
    configuration = out.splitlines()[out.splitlines().index("  configuration") + 1 :]
    assert [line.split()[0] for line in configuration] == ["lr", "notes", "numbers"]
    assert configuration[0].split() == ["lr", "0.1"]


def test_show_run_by_its_beginning_shows_its_steps(marin, ran):
    run = ran.json["run"]
    assert marin("show", run[:-1], "--json").json == marin("status", run, "--json").json


def test_show_unknown_name_exits_with_two_and_the_near_name(marin, ran):
    done = marin("show", "lern")
    assert done.code == 2
    assert "did you mean `learn`?" in done.err


def test_logs_show_what_a_step_printed(marin, ran):
    assert "learned all of it" in marin("logs").out
    assert "learned all of it" in marin("logs", ran.json["run"], "--step", "learn/small").out
    assert "learned all of it" not in marin("logs", "--step", "numbers").out


def test_logs_json_has_the_promised_keys(marin, ran):
    logs = marin("logs", "--step", "learn/small", "--json").json
    assert set(logs) == {"schema", "run", "logs"}
    assert set(logs["logs"][0]) == {"name", "attempt", "file", "text"}


def test_logs_unknown_step_or_run_exits_with_two(marin, ran):
    assert "did you mean `score`?" in marin("logs", "--step", "scor").err
    assert marin("logs", "1999").code == 2


def test_status_json_has_the_promised_keys(marin, ran):
    status = marin("status", "--json").json
    moments = {"started", "finished", "last_event", "submitted"}
    told = {"ray_job", "stop_asked", "stop", "error", "damage", "next"}
    assert set(status) == {"schema", "run", "state", "store", *moments, *told, "steps"}
    assert (status["ray_job"], status["stop_asked"]) == (None, None)
    assert status["state"] == "done"
    result = {"fingerprint", "digest", "artifact", "error", "started", "ended"}
    assert all(
        set(step)
        == {"name", "step", "state", "detail", "progress", "shards", "metrics", "attempts", "seconds", *result}
        for step in status["steps"]
    )
    learn = status["steps"][1]
    assert learn["progress"] == {"done": 200, "total": 200, "unit": "steps"}
    assert learn["metrics"]["tokens"] == 200_000


def test_status_failed_run_says_why_and_how_to_go_on(marin):
    marin("run", "counting.py", "--backend", "inline", "--lr", "5")
    done = marin("status")
    assert ": failed, started" in done.out
    assert "learn/small: ValueError: lr 5.0 diverges [red]" in done.out
    assert "to go on: marin run --backend inline counting.py --lr 5" in done.err


def test_status_next_command_names_a_store_that_is_not_the_default(marin, tmp_path):
    store = ("--store", f"{tmp_path}/my store")
    marin("run", "counting.py", "--backend", "inline", "--lr", "5", *store)
    assert (
        marin("status", *store).err
        == f"to go on: marin run --backend inline counting.py --lr 5 --store '{tmp_path}/my store'\n"
    )


KILLED = """
import os
import signal
from marin import Context, Folder, Step, pipeline


class Die(Step[Folder]):
    def run(self, ctx: Context) -> Folder:
        os.kill(os.getpid(), signal.SIGKILL)


@pipeline
def die():
    return [Die()]
"""


@pytest.mark.skipif(not Path("/proc").exists(), reason="only /proc tells for certain that a process is gone")
def test_status_run_whose_driver_was_killed_is_lost(marin, tmp_path):
    (tmp_path / "die.py").write_text(KILLED)
    command = [sys.executable, "-m", "marin", "run", str(tmp_path / "die.py"), "--backend", "inline"]
    subprocess.run(command, check=False, capture_output=True, timeout=60)
    assert marin("status", "--json").json["state"] == "lost"


def test_doctor_healthy_machine_exits_with_zero(marin, tmp_path):
    done = marin("doctor", "--json")
    assert set(done.json) == {"schema", "checks", "ok"}
    assert all(set(check) == {"name", "ok", "state", "found", "hint", "node"} for check in done.json["checks"])
    assert {"python", "ray", "torch", "store", "disk", "devices"} <= {check["name"] for check in done.json["checks"]}
    assert done.code == (0 if done.json["ok"] else 3)
    assert not (tmp_path / "store").exists()


def test_doctor_bad_store_and_silent_cluster_say_what_to_do_and_exit_with_three(marin, tmp_path):
    (tmp_path / "file").write_text("")
    done = marin("doctor", "--store", str(tmp_path / "file"), "--address", "127.0.0.1:1", "--json")
    bad = {check["name"]: check for check in done.json["checks"] if not check["ok"]}
    assert done.code == 3
    assert {"store", "cluster"} <= set(bad)
    assert all(bad[name]["hint"] for name in ("store", "cluster"))


def test_doctor_imports_nothing_that_it_reports(project):
    code = (
        "import sys\nfrom marin.cli.app import call\ncall(['doctor', '--json'])\n"
        "print([name for name in ('ray', 'torch', 'pyarrow') if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert json.loads(done.stdout)["schema"] == 1
    assert done.stderr.splitlines()[-1] == "[]"
