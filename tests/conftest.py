"""What every test shares: an environment of its own. No test reads or writes the home of whoever runs it."""

import os
import re
import secrets
import shutil
import tempfile

import hypothesis
import pytest

hypothesis.settings.register_profile("marin", deadline=None)
hypothesis.settings.load_profile("marin")

OWN = ("CI", "MARIN_STORE", "RAY_ADDRESS", "RANK", "LOCAL_RANK", "WORLD_SIZE", "FORCE_COLOR", "COLUMNS")


def pytest_make_parametrize_id(val: object) -> str | None:
    """Return a name that is the same in every process; those that hold an address are not, and several would differ."""
    shown = getattr(val, "__name__", None) or repr(val)
    return re.sub(r" at 0x[0-9a-f]+", "", shown) if " at 0x" in repr(val) else None


def pytest_configure(config: pytest.Config) -> None:
    """Set the environment before any test module is imported; processes that tests start inherit it."""
    cache = tempfile.mkdtemp(prefix="marin-tests-")
    config.add_cleanup(lambda: shutil.rmtree(cache, ignore_errors=True))
    for name in OWN:
        os.environ.pop(name, None)
    os.environ.update(
        XDG_CACHE_HOME=cache,
        NO_COLOR="1",
        OMP_NUM_THREADS="1",
        TOKENIZERS_PARALLELISM="false",
        HF_HUB_OFFLINE="1",
        RAY_USAGE_STATS_ENABLED="0",
        # One token for every cluster of this test run; Ray would write one into the user's home.
        RAY_AUTH_MODE="token",
        RAY_AUTH_TOKEN=secrets.token_hex(32),
    )
