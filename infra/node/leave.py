"""Takes the Ray node of this machine out of its cluster: call it where the machine is about to go.

No new work is placed here; the ranks of gangs are asked to stop, leave a checkpoint at their next step boundary and end
as preempted; then the hosts of those gangs are ended, so that they form again elsewhere. It returns when that is done,
or after `--seconds`. Shards and steps are not asked: those that end in time are kept, the others are repeated.

Kubernetes calls it as preStop hook, `watch-spot.sh` on a spot notice, and you before maintenance.
"""

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time

import psutil

# How processes of a gang look; a test holds these against a real gang. Ranks are what a fork server has started.
HOST = "ray::NodeHost"
FORK_SERVER = "marin.run.forkserver"


def main() -> int:
    """Leave; exits with 1 when ranks are left or the cluster did not answer, 2 when it is not clear which node."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=90, help="how long ranks may take (default: 90)")
    parser.add_argument("--node-id", default="", help="which node, where a machine has several")
    chosen = parser.parse_args()
    deadline = time.monotonic() + chosen.seconds
    nodes = raylets(chosen.node_id)
    if len(nodes) != 1:
        print(f"error: {len(nodes)} Ray nodes of this user on this machine", file=sys.stderr)
        print(f"hint: name one with --node-id: {' '.join(nodes) or 'there is none'}", file=sys.stderr)
        return 2
    (node, raylet), *_ = nodes.items()
    accepted = drained(node, option(raylet, "--gcs-address"), seconds=chosen.seconds)
    asked: set[psutil.Process] = set()
    while time.monotonic() < deadline:
        new = set(ranks(raylet)) - asked
        for rank in new:  # also one that was just starting
            signalled(rank, signal.SIGTERM)
        asked |= new
        if not any(map(lives, asked)):
            break
        time.sleep(0.2)
    left = sum(map(lives, asked))
    if not left:  # every checkpoint is there; a host would start the next ranks on this very node
        for host in children(raylet, HOST):
            signalled(host, signal.SIGKILL)
    print(f"left: {len(asked)} ranks asked, {left} still there, node {'drained' if accepted else 'not drained'}")
    return 0 if accepted and not left else 1


def raylets(node_id: str) -> dict[str, psutil.Process]:
    """Return the raylets of this user by node id; only `node_id` if it is given."""
    found = {}
    for process in psutil.process_iter(["name", "uids"]):
        uids = process.info["uids"]
        if process.info["name"] == "raylet" and uids and uids.real == os.getuid():
            found[option(process, "--node_id")] = process
    return {node: process for node, process in found.items() if node and node_id in ("", node)}


def option(process: psutil.Process, name: str) -> str:
    """Return the value of an option of a running program, empty if it has none or is gone."""
    try:
        words = process.cmdline()
    except psutil.NoSuchProcess:
        return ""
    return next((word.partition("=")[2] for word in words if word.startswith(f"{name}=")), "")


def drained(node: str, address: str, *, seconds: float) -> bool:
    """Tell the cluster to place nothing here any more; return whether it heard."""
    command = ["ray", "drain-node", f"--address={address}", f"--node-id={node}"]
    command += ["--reason=DRAIN_NODE_REASON_PREEMPTION", "--reason-message=the machine is about to go"]
    command += [f"--deadline-remaining-seconds={max(1, int(seconds))}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except subprocess.TimeoutExpired:
        print("the cluster does not answer; its ranks here are asked all the same", file=sys.stderr)
        return False
    if done.returncode:
        print(done.stderr.strip()[-500:], file=sys.stderr)
    return done.returncode == 0


def ranks(raylet: psutil.Process) -> list[psutil.Process]:
    """Return the processes of ranks on this node."""
    servers = [server for host in children(raylet, HOST) for server in children(host, "") if runs_forks(server)]
    return [rank for server in servers for rank in children(server, "")]


def children(parent: psutil.Process, title: str) -> list[psutil.Process]:
    """Return the children whose first word begins with `title`; none of a process that is gone."""
    found = []
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in parent.children():
            with contextlib.suppress(psutil.NoSuchProcess):  # it has ended meanwhile
                if lives(child) and (child.cmdline() or [""])[0].startswith(title):
                    found.append(child)
    return found


def runs_forks(process: psutil.Process) -> bool:
    """Whether a process forks ranks."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return any(FORK_SERVER in word for word in process.cmdline())
    return False


def lives(process: psutil.Process) -> bool:
    """Whether a process runs: neither gone nor a zombie."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False


def signalled(process: psutil.Process, number: int) -> None:
    """Send a signal to a process that may have ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process.send_signal(number)


if __name__ == "__main__":
    sys.exit(main())
