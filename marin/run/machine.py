"""Facts of the machine that this process runs on, gathered without importing what they are about.

Every node gathers them with the same function as the driver, so that two answers differ only where two machines do.
Invariant: it imports no first-party module and leaves nothing behind but the answer that a store probe asks for.
"""

import hashlib
import importlib.metadata
import importlib.util
import platform
import re
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

import marin
from marin import fs
from marin.base.errors import MarinError
from marin.run.preflight import Facts

DRIVER_FILE = Path("/proc/driver/nvidia/version")
CUDA_RUNTIMES = (
    "nvidia-cuda-runtime",
    "nvidia-cuda-runtime-cu13",
    "nvidia-cuda-runtime-cu12",
    "nvidia-cuda-runtime-cu11",
)
NCCLS = ("nvidia-nccl-cu13", "nvidia-nccl-cu12", "nvidia-nccl-cu11")
SHM = "/dev/shm"
SMI_SECONDS = 10.0


def gather(modules: Iterable[str] = ()) -> Facts:
    """Return all that is known of this machine; `modules` are first-party modules whose files are wanted."""
    found = {name: digest for name in modules if (digest := _file_digest(name)) is not None}
    return Facts(
        python=platform.python_version(),
        marin=version("marin"),
        marin_digest=_marin_digest(),
        ray=version("ray"),
        torch=version("torch"),
        cuda_driver=cuda_driver(),
        cuda=next(filter(None, map(version, CUDA_RUNTIMES)), ""),
        nccl=next(filter(None, map(version, NCCLS)), ""),
        modules=found,
        shm_bytes=_total(SHM),
        disk_bytes=shutil.disk_usage(tempfile.gettempdir()).free,
        open_files=_open_files(),
    )


def scarce() -> Facts:
    """Return what this machine may be short of, at next to no cost."""
    free = shutil.disk_usage(tempfile.gettempdir()).free
    return Facts(shm_bytes=_total(SHM), disk_bytes=free, open_files=_open_files())


def version(distribution: str) -> str:
    """Return the version of an installed distribution, or an empty text."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""


def cuda_driver() -> str:
    """Return the version of the NVIDIA driver, from its own file or from `nvidia-smi`; empty where there is none."""
    try:
        found = re.search(r"Module\s+(?:for \S+\s+)?(\d+\.[\d.]+)", DRIVER_FILE.read_text())
    except OSError:
        found = None
    if found is not None:
        return found[1]
    if shutil.which("nvidia-smi") is None:
        return ""
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=SMI_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return (answer.stdout.split() or [""])[0]


def answer(question: str, expected: str, reply: str) -> str:
    """Answer a driver's probe of the store: read what it wrote, write `reply`; return what is wrong, or nothing."""
    try:
        same = fs.read(question) == expected.encode()
    except fs.NotFound:
        same = False
    except (MarinError, OSError) as error:
        return f"cannot read the store: {_first_line(error)}"
    if not same:
        return "sees another store at that place: what this machine has written is not there"
    try:
        fs.replace(reply, expected.encode())
    except (MarinError, OSError) as error:
        return f"cannot write to the store: {_first_line(error)}"
    return ""


def _file_digest(module: str) -> str | None:
    """Return the digest of the file that importing `module` would read; None where none is found."""
    top, *parts = module.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):  # a script that was given another name
        spec = None
    if spec is None:
        return None
    places = [Path(folder, *parts) for folder in spec.submodule_search_locations or ()]
    files = [file for place in places for file in (place.with_suffix(".py"), place / "__init__.py")]
    found = next((file for file in ([Path(spec.origin or "")] if not parts else files) if file.is_file()), None)
    try:
        return _digest([found.read_bytes()]) if found is not None else None
    except OSError:
        return None


def _marin_digest() -> str:
    root = Path(marin.__file__).parent
    files = sorted(root.rglob("*.py"))
    return _digest([part for file in files for part in (str(file.relative_to(root)).encode(), file.read_bytes())])


def _digest(parts: Iterable[bytes]) -> str:
    whole = hashlib.sha256()
    for part in parts:
        whole.update(hashlib.sha256(part).digest())
    return whole.hexdigest()


def _total(folder: str) -> int:
    try:
        return shutil.disk_usage(folder).total
    except OSError:
        return 0


def _open_files() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 0 if soft == resource.RLIM_INFINITY else soft


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
