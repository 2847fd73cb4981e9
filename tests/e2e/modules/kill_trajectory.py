"""Run the trajectory pipeline, small, on the store that is named."""

import sys
from pathlib import Path

import torch
from trajectory import trajectory

import marin

torch.set_num_threads(1)
sys.audit("marin.testing.start")
files = f"{Path(marin.__file__).parent}/train/*.py"
(last,) = trajectory.build(files=files, steps=6, points=3, vocab_size=270, context=32)
sys.stdout.write(marin.run(last, store=sys.argv[1], backend="inline").digest)
