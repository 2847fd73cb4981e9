"""Save three checkpoints in the folder that is named; the third may be where this process is killed."""

import sys

import torch

from marin.train.checkpoint import Checkpoints


def save(step: int) -> None:
    tensors = {"model": {"w": torch.full((3,), float(step))}, "optimizer": {"m": torch.arange(4.0)}}
    state = {"step": step}
    Checkpoints(sys.argv[1]).save(step=step, generation=1, tensors=tensors, state=state, may_commit=lambda: True)


for number in (1, 2):
    save(number)
sys.audit("marin.testing.start")
save(3)
