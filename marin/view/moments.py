"""Moments as people read them: one form everywhere, in UTC. JSON keeps ISO 8601."""

from datetime import UTC, datetime


def moment_text(moment: str) -> str:
    """Return an ISO 8601 moment as `2026-12-01 13:45:01 UTC`; what is none is left as it is."""
    when = parsed(moment)
    return f"{when:%Y-%m-%d %H:%M:%S} UTC" if when else moment


def clock_text(moment: str) -> str:
    """Return the time of day of an ISO 8601 moment, in UTC: `13:45:01`."""
    when = parsed(moment)
    return f"{when:%H:%M:%S}" if when else moment


def seconds_between(start: str, end: str) -> float | None:
    """Return how long it was from one moment to another; None where one of them is not known."""
    first, last = parsed(start), parsed(end)
    return max(0.0, (last - first).total_seconds()) if first and last else None


def parsed(moment: str) -> datetime | None:
    """Return an ISO 8601 moment as a time in UTC; None for what is none."""
    try:
        return datetime.fromisoformat(moment).astimezone(UTC)
    except (ValueError, OverflowError):
        return None
