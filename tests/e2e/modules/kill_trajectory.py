"""Run the trajectory pipeline, small, on the store that is named."""

import sys
from pathlib import Path

import torch
from trajectory import trajectory

import marin

torch.set_num_threads(1)
sys.audit("marin.testing.start")
(last,) = trajectory.build(files=f"{Path(marin.__file__).parent}/train/*.py", steps=20, vocab_size=300, context=32)
sys.stdout.write(marin.run(last, store=sys.argv[1], backend="inline").digest)
