"""Runs a script under plans of when to die: `python -m marin.testing SCRIPT MODULES...`, orders on standard input."""

import sys

from marin.testing.kill import serve

serve(*sys.argv[1:])
