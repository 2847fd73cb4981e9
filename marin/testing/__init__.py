"""What tests of pipelines and of marin itself need: tiny inputs, clocks, storage that misbehaves, kills by name."""

from marin.testing.clock import Clock, Clocks
from marin.testing.documents import words
from marin.testing.kill import Point, Script
from marin.testing.rules import Rule
from marin.testing.storage import Call, Crash, FaultyStorage

__all__ = [
    "Call",
    "Clock",
    "Clocks",
    "Crash",
    "FaultyStorage",
    "Point",
    "Rule",
    "Script",
    "words",
]
