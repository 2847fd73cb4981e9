"""The script for plain machines over a fake ssh: real Ray on two "machines" of this host, a run, a node that leaves."""

import re
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "infra/vm/cluster.sh"
LEAVE = ROOT / "infra/node/leave.py"
# Every machine has a home of its own; the rest they share.
SSH = """
while [[ $1 == -* ]]; do shift 2; done
host=$1; shift
[ -d "$FAKE_NET/$host" ] || { echo "ssh: could not resolve $host" >&2; exit 255; }
HOME=$FAKE_NET/$host SSH_CONNECTION="127.0.0.1 50000 127.0.0.1 22" exec bash -c "$*"
"""


@pytest.fixture
def machines(shell):
    """A shell whose ssh reaches the machines `head` and `worker`, with a free port for each service."""
    shell.fake("ssh", SSH)
    for name in ("head", "worker"):
        (shell.folder / name / "marin").mkdir(parents=True)
        (shell.folder / name / "marin/.venv").symlink_to(sys.prefix)
    (shell.folder / "hosts.txt").write_text("# two of them\nhead\n\nworker  # by ssh's own address\n")
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
    ports = [str(each.getsockname()[1]) for each in sockets]
    for each in sockets:
        each.close()
    shell.environment |= dict(zip(("MARIN_PORT", "MARIN_DASHBOARD_PORT", "MARIN_CLIENT_PORT"), ports, strict=True))
    shell.environment |= {
        "FAKE_NET": str(shell.folder),
        "MARIN_HEAD_OPTIONS": "--num-cpus=1 --min-worker-port=0 --max-worker-port=0",
    }
    shell.environment["MARIN_WORKER_OPTIONS"] = shell.environment["MARIN_HEAD_OPTIONS"]
    return shell


def call(machines, verb: str) -> tuple[int, str]:
    """Return exit code and output of the script."""
    process = machines.start(SCRIPT, verb)
    before = machines.log.stat().st_size
    return process.wait(150), machines.log.read_text()[before:]


def test_vm_cluster_starts_runs_loses_a_node_in_order_and_stops(machines):
    assert call(machines, "start")[0] == 0, machines.log.read_text()
    state = [machines.folder / host / f".marin/vm-{machines.environment['MARIN_PORT']}" for host in ("head", "worker")]
    assert [oct((each / "token").stat().st_mode)[-3:] for each in state] == ["600", "600"]
    token = (state[0] / "token").read_text()
    assert (state[1] / "token").read_text() == token
    assert all(token not in " ".join(process.cmdline()) for process in machines.processes())
    raylets = [process.pid for process in machines.processes() if process.name() == "raylet"]
    code, again = call(machines, "start")
    assert (code, again.count("runs already")) == (0, 2)
    assert [process.pid for process in machines.processes() if process.name() == "raylet"] == raylets
    assert call(machines, "status")[0] == 0

    arguments = " ".join(machines.pipeline(held="true"))
    run = machines.start("bash", "-c", f". {state[0]}/env && exec marin run {arguments}")
    places = [machines.wait_for(f"rank-{rank}", run) for rank in range(2)]
    raylet = psutil.Process(int(places[1].read_text()))
    node = next(word.partition("=")[2] for word in raylet.cmdline() if word.startswith("--node_id="))
    left = machines.start(
        sys.executable,
        LEAVE,
        "--node-id",
        node,
        "--seconds",
        "20",
        RAY_AUTH_MODE="token",
        RAY_AUTH_TOKEN_PATH=str(state[0] / "token"),
    )
    assert left.wait(90) == 0, machines.log.read_text()
    # Two, where the gang was so quick that its next rank stood here before the host was ended: it is asked too.
    assert re.search("left: [12] ranks asked, 0 still there, node drained", machines.log.read_text())
    machines.wait_for("stopped-0", run)  # the rank on the other node was told by its gang
    run.kill()
    run.wait()

    assert call(machines, "stop")[0] == 0
    assert machines.processes() == []
    code, output = call(machines, "status")
    assert (code, output.count("does not run")) == (3, 2)


def test_vm_machines_with_different_versions_are_refused(machines):
    environment = machines.folder / "worker/marin/.venv"
    environment.unlink()
    (environment / "bin").mkdir(parents=True)
    python = environment / "bin/python"
    python.write_text("#!/bin/sh\necho python 3.11.0 marin 0.0.9\n")
    python.chmod(0o755)
    code, output = call(machines, "start")
    assert code == 3
    assert "different versions" in output
    assert "marin 0.0.9" in output
    assert machines.processes() == []


def test_vm_machine_that_does_not_answer_is_named(machines):
    (machines.folder / "hosts.txt").write_text("head\nnowhere\n")
    code, output = call(machines, "start")
    assert code == 3
    assert "could not resolve nowhere" in output


def test_vm_wrong_usage_is_said(machines):
    assert call(machines, "restart")[0] == 2
    (machines.folder / "hosts.txt").write_text("# none\n")
    assert call(machines, "start")[0] == 2


def test_node_that_is_not_here_cannot_leave(machines):
    done = subprocess.run([sys.executable, LEAVE, "--node-id", "none"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "0 Ray nodes" in done.stderr
