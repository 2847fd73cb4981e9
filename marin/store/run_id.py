"""Ids of runs: when they began, and a few random digits; they sort by time."""

import secrets
from datetime import UTC, datetime


def new_run_id() -> str:
    """Return an id such as `20261201-134501-7f3a`, in UTC."""
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
