"""`marin doctor`: versions, store, disk and devices of this machine and of every node of a cluster.

Each line is ok, or says what to do. Nothing that it reports on is imported unless a cluster has to be asked.
"""

import importlib.metadata
import os
import platform
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import click
from rich.text import Text

from marin import fs
from marin.base.errors import MarinError
from marin.base.units import format_size
from marin.cli.options import common_options, stdout, write_json
from marin.run import machine
from marin.run.api import check_address, code_folders, open_backend
from marin.run.placement import describe, inventory
from marin.run.preflight import LEAST_DISK_BYTES, Facts, Finding, Needs, Node, compare

EPILOG = """\b
Examples:
  marin doctor
  marin doctor --address 10.0.0.1:6379 --store s3://lab/marin"""

PACKAGES = ("marin", "ray", "torch", "pyarrow", "pydantic", "fsspec", "tokenizers", "fastokens")


State = Literal["ok", "warn", "no"]
STYLES: Mapping[State, str] = {"ok": "green", "warn": "yellow", "no": "red"}


@dataclass(frozen=True)
class Check:
    """One thing looked at, on this machine or on a node."""

    name: str
    state: State
    found: str
    hint: str = ""
    node: str = ""

    def to_json(self) -> dict[str, object]:
        """Return the object that `--json` shows."""
        return {**vars(self), "ok": self.state != "no"}


@click.command(epilog=EPILOG)
@click.option("--address", default=lambda: os.environ.get("RAY_ADDRESS"), help="Ray cluster to look at.")
@common_options
def command(address: str | None, store: str, as_json: bool, traceback: bool) -> int:
    """Check what a run needs, here and on each node. Exits with 3 if something will not work."""
    checks = [_python(), *map(_package, PACKAGES), _nccl(), _store(store), _disk(store), _devices()]
    checks += _cluster(address, store) if address else []
    ok = all(check.state != "no" for check in checks)
    if as_json:
        write_json({"checks": [check.to_json() for check in checks], "ok": ok})
    else:
        _draw(checks)
    return 0 if ok else 3


def _draw(checks: list[Check]) -> None:
    out, node = stdout(), ""
    for check in checks:
        if check.node != node:
            out.print(Text(f"node {check.node}", style="bold"), soft_wrap=True)
            node = check.node
        mark = (f"{check.state:<5}", STYLES[check.state])
        out.print(Text.assemble(mark, f"{check.name:<10} {check.found}"), soft_wrap=True)
        if check.hint:
            out.print(Text.assemble(f"{'':<16}", ("hint:", "cyan"), f" {check.hint}"), soft_wrap=True)


def _python() -> Check:
    ok = sys.version_info >= (3, 11)
    found = f"{platform.python_version()} {sys.executable}"
    return Check("python", "ok", found) if ok else Check("python", "no", found, "use Python 3.11 or newer")


def _package(name: str) -> Check:
    try:
        return Check(name, "ok", importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return Check(name, "no", "not installed", f"pip install {name}")


def _nccl() -> Check:
    facts = machine.gather()
    parts = [("NCCL", facts.nccl), ("CUDA", facts.cuda), ("driver", facts.cuda_driver)]
    return Check("nccl", "ok", ", ".join(f"{name} {found}" for name, found in parts if found) or "none: CPUs only")


def _place(url: str) -> str:
    """Return the store, or the nearest folder that exists when there is none yet."""
    place = fs.normalise(url)
    path = fs.local_path(place)
    return place if path is None else str(next(folder for folder in (path, *path.parents) if folder.exists()))


def _store(url: str) -> Check:
    """Probe create-only in the store."""
    try:
        fs.probe(_place(url))
    except MarinError as error:
        return Check("store", "no", f"{url}: {error.what}", error.hint)
    return Check("store", "ok", f"{fs.normalise(url)}: writable, and creates files once")


def _disk(url: str) -> Check:
    path = fs.local_path(fs.normalise(url))
    here = next(folder for folder in (path, *path.parents) if folder.exists()) if path else Path.cwd()
    free = shutil.disk_usage(here if here.is_dir() else here.parent).free
    found = f"{format_size(free)} free at {here}"
    return Check("disk", "ok", found) if free >= LEAST_DISK_BYTES else Check("disk", "no", found, "free some space")


def _devices() -> Check:
    cpus = f"{os.cpu_count()} CPUs on {socket.gethostname()}"
    if shutil.which("nvidia-smi") is None:
        return Check("devices", "ok", f"{cpus}, no GPU")
    query = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=20, check=False)
    except subprocess.TimeoutExpired:
        return Check("devices", "no", f"{cpus}; nvidia-smi does not answer", "check the driver: `nvidia-smi` hangs")
    if answer.returncode:
        return Check("devices", "no", f"{cpus}; nvidia-smi: {answer.stderr.strip()}", "check the driver")
    return Check("devices", "ok", f"{cpus}, {'; '.join(answer.stdout.strip().splitlines())}")


def _cluster(address: str, store: str) -> list[Check]:
    """Connect, ask every node, and compare."""
    try:
        check_address(address)
        backend = open_backend("ray", address)
        try:
            backend.start(code_folders(), "doctor")
            nodes = backend.examine(_place(store))
        finally:
            backend.close()
    except MarinError as error:
        return [Check("cluster", "no", error.what, error.hint)]
    findings = compare(machine.gather(), nodes, Needs(store, gangs_on=frozenset({"CPU", "GPU"})))
    found = f"{address} answers: {inventory([node.has for node in nodes])}"
    return [Check("cluster", "ok", found), *(check for node in nodes for check in _node(node, findings))]


def _node(node: Node, findings: Sequence[Finding]) -> Iterator[Check]:
    """Yield what a node has, a line for each thing, and below it what is wrong with that."""
    facts, wrong = node.facts, [finding for finding in findings if finding.node == node.name]
    known = {
        "versions": _versions(facts),
        "store": "the same store",
        "devices": describe({key: node.has.get(key, 0) for key in ("CPU", "GPU", "memory")}),
        "limits": f"{format_size(facts.shm_bytes)} of /dev/shm, {facts.open_files} open files",
        "disk": f"{format_size(facts.disk_bytes)} free for temporary files",
        "clock": f"within {max(abs(facts.skew_seconds), 0.1):.1f} s of this machine's",
    }
    for finding in wrong:
        state: State = "no" if finding.severity == "error" else "warn"
        yield Check(finding.subject, state, finding.what, finding.hint, node.name)
    if not node.problem:
        subjects = {finding.subject for finding in wrong}
        yield from (Check(name, "ok", found, node=node.name) for name, found in known.items() if name not in subjects)


def _versions(facts: Facts) -> str:
    names = {"Python": facts.python, "marin": facts.marin, "Ray": facts.ray, "torch": facts.torch}
    names |= {"CUDA": facts.cuda, "driver": facts.cuda_driver, "NCCL": facts.nccl}
    return ", ".join(f"{name} {version}" for name, version in names.items() if version)
