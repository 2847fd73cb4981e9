"""Run, load and plan from Python: what notebooks, tests and the command line call.

Invariant: importing this module imports neither Ray nor torch; the Ray backend is imported when something has to run.
"""

import os
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, overload

from marin import fs
from marin.base.errors import ConfigurationError, Interrupted, StepError
from marin.base.lazy import resolve
from marin.graph.artifact import Artifact
from marin.graph.plan import Plan
from marin.graph.step import Step
from marin.run.backend import Backend
from marin.run.engine import Engine
from marin.run.planner import plan_steps
from marin.run.producer import producer
from marin.run.result import RunResult
from marin.store import EventWriter, Heartbeat, Leases, Store

A = TypeVar("A", bound=Artifact)

BackendName = Literal["ray", "inline"]
