"""Unit tests of training run on the CPU, where results are equal to the bit, even on a machine with GPUs."""

import os

os.environ["CUDA_VISIBLE_DEVICES"] = ""
