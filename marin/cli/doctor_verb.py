"""`marin doctor`: versions, store, disk, devices and cluster; each line is ok or says what to do."""

import importlib.metadata
import os
import platform
import shutil
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import click
from rich.text import Text

from marin import fs
from marin.base.errors import MarinError
from marin.base.units import format_size
from marin.cli.options import common_options, stdout, write_json
from marin.run.api import check_address

EPILOG = """\b
Examples:
  marin doctor
  marin doctor --address 10.0.0.1:6379 --store s3://lab/marin"""

PACKAGES = ("marin", "ray", "torch", "pyarrow", "pydantic", "fsspec", "tokenizers", "fastokens")
LEAST_FREE_BYTES = 2_000_000_000


@dataclass(frozen=True)
class Check:
    """One thing looked at."""

    name: str
    ok: bool
    found: str
    hint: str = ""


@click.command(epilog=EPILOG)
@click.option("--address", default=lambda: os.environ.get("RAY_ADDRESS"), help="Ray cluster to look at.")
@common_options
def command(address: str | None, store: str, as_json: bool, traceback: bool) -> int:
    """Check what a run needs here. Exits with 3 if something will not work."""
    checks = [_python(), *map(_package, PACKAGES), _store(store), _disk(store), _devices()]
    checks += [_cluster(address)] if address else []
    if as_json:
        write_json({"checks": [vars(check) for check in checks], "ok": all(check.ok for check in checks)})
    else:
        for check in checks:
            mark = ("ok   ", "green") if check.ok else ("no   ", "red")
            stdout().print(Text.assemble(mark, f"{check.name:<10} {check.found}"), soft_wrap=True)
            if check.hint:
                stdout().print(Text.assemble(f"{'':<16}", ("hint:", "cyan"), f" {check.hint}"), soft_wrap=True)
    return 0 if all(check.ok for check in checks) else 3


def _python() -> Check:
    ok = sys.version_info >= (3, 11)
    return Check(
        "python", ok, f"{platform.python_version()} {sys.executable}", "" if ok else "use Python 3.11 or newer"
    )


def _package(name: str) -> Check:
    try:
        return Check(name, True, importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return Check(name, False, "not installed", f"pip install {name}")


def _store(url: str) -> Check:
    """Probe create-only in the store, or in the nearest folder that exists when there is none yet."""
    place = fs.normalise(url)
    path = fs.local_path(place)
    if path is not None:
        place = str(next(folder for folder in (path, *path.parents) if folder.exists()))
    try:
        fs.probe(place)
    except MarinError as error:
        return Check("store", False, f"{url}: {error.what}", error.hint)
    return Check("store", True, f"{fs.normalise(url)}: writable, and creates files once")


def _disk(url: str) -> Check:
    path = fs.local_path(fs.normalise(url))
    here = next(folder for folder in (path, *path.parents) if folder.exists()) if path else Path.cwd()
    free = shutil.disk_usage(here if here.is_dir() else here.parent).free
    ok = free >= LEAST_FREE_BYTES
    return Check("disk", ok, f"{format_size(free)} free at {here}", "" if ok else "free some space")


def _devices() -> Check:
    cpus = f"{os.cpu_count()} CPUs on {socket.gethostname()}"
    if shutil.which("nvidia-smi") is None:
        return Check("devices", True, f"{cpus}, no GPU")
    query = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=20, check=False)
    except subprocess.TimeoutExpired:
        return Check("devices", False, f"{cpus}; nvidia-smi does not answer", "check the driver: `nvidia-smi` hangs")
    if answer.returncode:
        return Check("devices", False, f"{cpus}; nvidia-smi: {answer.stderr.strip()}", "check the driver")
    return Check("devices", True, f"{cpus}, {'; '.join(answer.stdout.strip().splitlines())}")


def _cluster(address: str) -> Check:
    try:
        check_address(address)
    except MarinError as error:
        return Check("cluster", False, error.what, error.hint)
    return Check("cluster", True, f"{address} answers")
