"""What becomes of a verb's output: readers that leave, disks that are full, terminals, one JSON for all."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from marin.store import EventWriter, Store

COMMAND = [sys.executable, "-m", "marin"]
SHOUTS = """
from marin import Context, Step, Value, pipeline


class Shout(Step[Value[int]]):
    def run(self, ctx: Context) -> Value[int]:
        print("0%\\r50%\\r100%")
        print("\\x1b]0;title\\x07\\x1b[31mred\\x1b[0m\\x1b[2J\\u202e")
        return Value.write(ctx.output, 1)


@pipeline
def shouting():
    return [Shout()]
"""
VERBS = [
    "ls",
    "ls --json",
    "cat complete",
    "plan counting.py",
    "status",
    "status --json",
    "watch",
    "logs",
    "--help",
    "ls --help",
]


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("both", [False, True], ids=["stdout", "stdout and stderr"])
def test_reader_that_has_left_ends_a_verb_quietly_with_141(ran, verb, both):
    reading, writing = os.pipe()
    os.close(reading)
    errors = writing if both else subprocess.PIPE
    done = subprocess.run([*COMMAND, *verb.split()], stdout=writing, stderr=errors, text=True, check=False, timeout=60)
    os.close(writing)
    assert done.returncode == 141
    assert both or verb == "watch" or done.stderr == ""


def test_reader_that_leaves_in_the_middle_ends_a_verb_quietly(marin, project, tmp_path):
    texts = ",".join(f"{number:0>200}" for number in range(1000))
    assert marin("run", "counting.py", "--backend", "inline", "--notes", texts).code == 0
    command = f"set -o pipefail; {' '.join(COMMAND)} show learn | head -c 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode in (0, 141), done.stderr) == (True, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("verb", VERBS)
def test_output_to_a_full_disk_is_an_error_of_the_output(ran, verb):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*COMMAND, *verb.split()], stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=60
        )
    assert done.returncode == 3
    assert "error: cannot write the output: no space left on device\nhint: free space" in done.stderr
    assert "Exception ignored" not in done.stderr


@pytest.mark.parametrize("verb", ["ls", "ls --json", "status", "logs", "plan counting.py"])
def test_closed_standard_output_is_no_error(ran, verb):
    command = f"exec {' '.join(COMMAND)} {verb} >&-"
    done = subprocess.run(["bash", "-c", command], stderr=subprocess.PIPE, text=True, check=False, timeout=60)
    assert done.returncode == 0
    assert "error" not in done.stderr
    assert "Traceback" not in done.stderr


def on_a_terminal(*arguments: str, **environment: str) -> str:
    """Return what a verb writes to a terminal."""
    master, terminal = pty.openpty()
    plain = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    command = [*COMMAND, *arguments]
    with subprocess.Popen(command, stdout=terminal, stderr=terminal, env={**plain, **environment}) as process:
        os.close(terminal)
        written = b""
        try:
            while data := os.read(master, 1 << 16):
                written += data
        except OSError:  # the terminal is closed at its other end
            pass
        assert process.wait(timeout=60) == 0
    os.close(master)
    return written.decode().replace("\r\n", "\n")


def test_logs_on_a_terminal_only_show_and_in_a_pipe_are_raw(marin, tmp_path):
    (tmp_path / "shouts.py").write_text(SHOUTS)
    assert marin("run", str(tmp_path / "shouts.py"), "--backend", "inline").code == 0
    raw = "0%\r50%\r100%\n\x1b]0;title\x07\x1b[31mred\x1b[0m\x1b[2J\u202e\n"
    assert marin("logs").out.partition("\n")[2] == raw
    shown = on_a_terminal("logs").partition("\n")[2]
    assert shown == "100%\n\\x1b]0;title\\x07\x1b[31mred\x1b[0m\\x1b[2J\\u202e\n"
    plain = on_a_terminal("logs", NO_COLOR="1").partition("\n")[2]
    assert plain == "100%\n\\x1b]0;title\\x07red\\x1b[2J\\u202e\n"
    told = marin("logs", "--json")
    assert told.json["logs"][0]["text"] == raw
    assert told.out.replace("\n", "").isprintable()


def test_error_that_holds_control_characters_is_one_printable_line(marin):
    name = "no\x1b[2J\nhint such\u202e"
    done = marin("plan", f"{name}.py", "--json")
    assert done.code == 2
    assert done.err.startswith("error: there is no file no\\x1b[2J\\nhint such\\u202e.py\n")
    assert done.out.replace("\n", "").isprintable()
    assert name in done.json["error"]["message"]


@pytest.mark.parametrize(
    "verb", ["ls --json", "status --json", "watch --json", "plan counting.py --json", "logs --json", "pln --json"]
)
def test_json_of_every_verb_is_written_one_way(marin, ran, verb):
    done = marin(*verb.split())
    assert done.out == json.dumps(done.json, indent=1, ensure_ascii=False) + "\n"
    assert next(iter(done.json)) == "schema"


def test_watch_whose_reader_has_left_ends_and_the_run_goes_on(marin, project, tmp_path):
    store = Store.open(os.environ["MARIN_STORE"], write=True)
    run = "20261201-120000-abcd"
    steps = [{"name": "a", "step": "a", "state": "waiting"}]
    store.write_run(run, {"run": run, "state": "running", "store": store.url, "steps": steps})
    writer = EventWriter(store.url, run, "driver")
    writer.emit("state", name="a", state="running", attempt="1")
    writer.close()
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([*COMMAND, "watch"], stderr=writing, check=False, timeout=60)
    os.close(writing)
    assert done.returncode == 141
    assert marin("status", "--json").json["state"] == "running"


def test_warnings_only_show(marin, ran):
    folder = Path(os.environ["MARIN_STORE"], "artifacts", "learn\x1b[2J", "0123456789abcdef")
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text("x")
    command = [*COMMAND, "ls"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert "warning: " in done.stderr
    assert "learn\\x1b[2J" in done.stderr
    assert "\x1b" not in done.stderr


def test_warning_about_a_damaged_record_is_said_once(ran, project, tmp_path):
    (manifest,) = (tmp_path / "store" / "artifacts" / "numbers").glob("*/manifest.json")
    manifest.write_text(manifest.read_text()[:50])
    command = [*COMMAND, "run", "counting.py", "--backend", "inline", "--store", str(tmp_path / "store")]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=True)
    assert done.stderr.count("is passed over") == 1, done.stderr
