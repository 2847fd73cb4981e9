"""Runs a script under a plan of when to die: `python -m marin.testing PLAN SCRIPT ARGUMENTS...`."""

import sys

from marin.testing.kill import main

main(sys.argv[1:])
