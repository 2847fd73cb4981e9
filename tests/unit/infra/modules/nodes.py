"""A pipeline for the tests of infra/: a gang whose ranks say on which node they are, and can be held there."""

import os
import time
from pathlib import Path

from marin import Context, Step, Value, pipeline
from marin.base.config import Placement
from marin.graph.context import Member


class Nodes(Step[Value[list[str]]]):
    """The pids of the ranks' raylets, which each leaves in `folder`. Held ranks go on until they are asked to stop."""

    label: str
    folder: Placement[str]
    held: Placement[bool] = False

    def run(self, ctx: Context) -> Value[list[str]]:
        nodes = ctx.gang(seat, rendezvous=Meeting, folder=self.folder, held=self.held)
        return Value.write(ctx.output, nodes)


class Meeting:
    """A rendezvous without torch."""

    address = "127.0.0.1:1"


def seat(member: Member, *, folder: str, held: bool) -> str:
    Path(folder, f"rank-{member.rank}").write_text(os.environ["RAY_RAYLET_PID"])
    turns = 0
    while held and not member.stopping:
        turns += 1
        member.beat("turn", turns)
        time.sleep(0.05)
    if held:
        Path(folder, f"stopped-{member.rank}").touch()
    return os.environ["RAY_RAYLET_PID"]


@pipeline
def nodes(folder: str, label: str = "a", held: bool = False):
    return Nodes(folder=folder, label=label, held=held).on(ranks=2)
