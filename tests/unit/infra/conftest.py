"""Fakes of what infra's scripts stand on (a Slurm, an ssh), as programs on PATH, and care for what they start."""

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from marin.store import Store

NODES = Path(__file__).parent / "modules" / "nodes.py"


class Shell:
    """Runs scripts with fakes first on PATH; every process that carries its mark is found, however it was started."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "bin"
        self.bin.mkdir()
        self.store = folder / "store"
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")},
            "PATH": f"{self.bin}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": str(folder),
            "MARIN_TEST_MARK": str(folder),
        }

    def fake(self, name: str, text: str) -> None:
        """Put a program on PATH."""
        path = self.bin / name
        path.write_text(f"#!/usr/bin/env bash\n{text}")
        path.chmod(0o755)

    def start(self, *command: str | Path, **environment: str) -> subprocess.Popen[str]:
        """Start a command; its output is in `log`."""
        with self.log.open("a") as output:
            return subprocess.Popen(
                list(map(str, command)),
                env={**self.environment, **environment},
                cwd=self.folder,
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
            )

    @property
    def log(self) -> Path:
        return self.folder / "output.log"

    def pipeline(self, **options: str) -> list[str]:
        """Return the arguments of a run of `modules/nodes.py` with these options."""
        given = {"folder": str(self.folder), **options}
        words = [word for name, value in given.items() for word in (f"--{name}", value)]
        return [str(NODES), "--store", str(self.store), *words]

    def wait_for(self, name: str, process: subprocess.Popen[str]) -> Path:
        """Wait until a file appears in the folder; fail once the process has ended without it."""
        pause = threading.Event()
        path = self.folder / name
        while not path.exists():
            assert process.poll() is None, self.log.read_text()
            pause.wait(0.1)
        return path

    def run_states(self) -> list[str]:
        """Return the states of the runs in the store, the newest first."""
        store = Store.open(str(self.store), write=False)
        return [str((store.read_run(run) or {}).get("state")) for run in store.runs()]

    def processes(self) -> list[psutil.Process]:
        """Return what still runs of all that was started here."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("MARIN_TEST_MARK") == str(self.folder):
                    found.append(process)
        return [process for process in found if process.status() != psutil.STATUS_ZOMBIE]


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """A shell of this test; whatever it leaves running is killed."""
    shell = Shell(tmp_path)
    yield shell
    for process in shell.processes():
        process.kill()
