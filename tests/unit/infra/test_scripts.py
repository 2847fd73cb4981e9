"""Every shell script of infra/: clean for shellcheck, executable, and careful from its first line."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SCRIPTS = sorted([*(ROOT / "infra").rglob("*.sh"), *(ROOT / "infra").rglob("*.sbatch")])


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_script_is_clean(script: Path) -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name("shellcheck"), script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_script_can_be_run_and_stops_at_the_first_error(script: Path) -> None:
    text = script.read_text()
    assert os.access(script, os.X_OK)
    assert text.startswith("#!/usr/bin/env bash\n")
    assert "\nset -euo pipefail\n" in text
