"""Ids of runs: when they began, and two random digits; they sort by time."""

import secrets
from datetime import UTC, datetime


def new_run_id() -> str:
    """Return an id such as `20261201-134501-7f3a09`, in UTC: seconds, then 1/65,536 of one, then chance."""
    now = datetime.now(UTC)
    return f"{now:%Y%m%d-%H%M%S}-{now.microsecond * 65536 // 10**6:04x}{secrets.token_hex(1)}"
