"""A cluster that somebody else has started: found by its address, used, and left running."""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

MODULES = str(Path(__file__).parent / "modules")

DRIVER = """
import sys
import engine_steps as steps
from marin.run import api

folder, store, address = sys.argv[1:]
total = api.run(steps.Total(squares=steps.Squares(n=9, folder=folder)), store=store, address=address)
seats = api.run(steps.Gang(folder=folder).on(ranks=2), store=store, address=address)
print(total.value, [seat[0] for seat in seats.value])
"""


@pytest.fixture
def head(tmp_path: Path) -> Iterator[str]:
    """Start a head node in a session of its own and end it by its own process group."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    ray = str(Path(sys.executable).with_name("ray"))
    options = ["--num-cpus=2", "--include-dashboard=false", "--object-store-memory=100000000", "--disable-usage-stats"]
    command = [ray, "start", "--head", "--block", f"--port={address.split(':')[1]}", *options]
    log = tmp_path / "head.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [*command, "--node-ip-address=127.0.0.1"], stdout=output, stderr=output, start_new_session=True
        )
    try:
        pause = threading.Event()
        while "Ray runtime started" not in log.read_text():
            assert process.poll() is None, log.read_text()
            pause.wait(0.2)
        yield address
        assert process.poll() is None, "the run must leave the cluster alone"
    finally:
        family = psutil.Process(process.pid).children(recursive=True)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for each in family:
            if each.is_running():
                each.kill()


def test_run_on_a_cluster_with_an_address_uses_it_and_leaves_it_running(head, tmp_path):
    environment = {**os.environ, "PYTHONPATH": MODULES}
    command = [sys.executable, "-c", DRIVER, str(tmp_path), str(tmp_path / "store"), head]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=90, check=False)
    assert done.stdout == "204 [0, 1]\n", done.stderr[-3000:]
