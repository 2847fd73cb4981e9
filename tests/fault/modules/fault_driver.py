"""A driver of the tiny pipeline, to be killed: `fault_driver.py STORE`."""

import sys

import fault_pipeline

from marin.run import api
from marin.run.backends import inline  # noqa: F401  imported before the start, so that imports are no points to die at

sys.audit("marin.testing.start")
store = sys.argv[1]
result = api.run_plan(api.plan(fault_pipeline.letter(), store=store), store=store, backend="inline")
assert result.state == "done", result
