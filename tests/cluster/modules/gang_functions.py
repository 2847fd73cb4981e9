"""What the ranks of gangs run in tests: small functions without torch, importable by every node.

`folder` is a scratch folder: ranks meet there by files, and count what they do.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from marin.graph.context import Member


class Meeting:
    """A rendezvous on every interface, without torch."""

    address = ":1234"


def refuse() -> Meeting:
    raise OSError("no port is free")


def seat_of(member: Member) -> dict[str, str]:
    """Return the environment of a rank."""
    member.beat("start", 0)
    return dict(os.environ)


def add_up(member: Member, *, folder: str, steps: int, pause: float = 0.05) -> dict[str, object]:
    """Add the numbers of `steps` batches of twelve, each split over the ranks, by files; checkpoint every step.

    The sum depends on neither the number of ranks nor on how often the gang was formed.
    """
    root = Path(folder)
    total, step = _newest(root)
    while step < steps:
        member.beat("train", step)
        _mark(root, f"begun-{step:04d}-g{member.generation}-r{member.rank}-of-{member.world_size}")
        share = [12 * step + i for i in range(12)][member.rank :: member.world_size]
        mine = root / f"part-{step}-g{member.generation}-r{member.rank}.json"
        _write(mine, [sum(share), member.stopping])
        parts = [_read(root / f"part-{step}-g{member.generation}-r{rank}.json") for rank in range(member.world_size)]
        total, step = total + sum(part[0] for part in parts), step + 1
        if member.rank == 0 and member.may_commit():
            _write(root / f"step-{step:04d}.json", total)
        if any(part[1] for part in parts):
            return {"stopped": step}
        time.sleep(pause)
    return {"sum": total, "world_size": member.world_size}


def misbehave(member: Member, *, folder: str, how: str, victim: int = 0) -> list[int]:
    """Do something to oneself in generation 1, as the victim; return who and when otherwise."""
    member.beat("start", 0)
    _mark(Path(folder), f"pid-{os.getpid()}-g{member.generation}-r{member.rank}")
    if member.generation == 1 and member.rank == victim:
        match how:
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "leave":
                os._exit(7)
            case "raise":
                raise ValueError("no")
            case "exit":
                sys.exit(3)
            case "unpicklable":
                return lambda: None
    if member.generation == 1 and how != "nothing":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        _mark(Path(folder), f"pid-{child.pid}-child")
        while not member.stopping:
            time.sleep(0.02)
    return [member.rank, member.generation]


def end_at_once(member: Member) -> list[object]:
    """Return where this rank sits."""
    return [member.rank, member.world_size, member.local_rank, os.environ["NODE_RANK"], member.rendezvous]


def _newest(root: Path) -> tuple[int, int]:
    found = sorted(root.glob("step-*.json"))
    return (json.loads(found[-1].read_text()), int(found[-1].stem[5:])) if found else (0, 0)


def _write(path: Path, value: object) -> None:
    part = path.with_suffix(f".{os.getpid()}")
    part.write_text(json.dumps(value))
    part.rename(path)


def _read(path: Path) -> list[int]:
    while not path.exists():
        time.sleep(0.005)
    value: list[int] = json.loads(path.read_text())
    return value


def _mark(root: Path, name: str) -> None:
    (root / name).touch()
