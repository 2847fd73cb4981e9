"""Sizes and durations as people write and read them."""

import re

from marin.base.errors import ConfigurationError

_FACTORS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kmgt]?i?)b?\s*", re.IGNORECASE)


def parse_size(text: str) -> int:
    """Return the bytes that a text such as `700 GB` or `64 MiB` names."""
    match = _SIZE.fullmatch(text)
    if match is None or match[2].lower() not in _FACTORS:
        raise ConfigurationError(
            f"{text!r} is not a size", hint='write a number and a unit, such as "16 GB" or "512 MiB"'
        )
    return int(float(match[1]) * _FACTORS[match[2].lower()])


def format_size(size_bytes: float) -> str:
    """Return bytes in the largest decimal unit that keeps a digit before the point: `1.3 MB`."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(size_bytes) < 1000 or unit == "TB":
            return f"{size_bytes:.0f} {unit}" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1000
    raise AssertionError("unreachable")


def format_seconds(seconds: float) -> str:
    """Return a duration: `0.4 s`, `12 s`, `3 min 20 s`, `2 h 5 min`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def format_count(count: float) -> str:
    """Return a count with at most three leading digits: `950`, `1.2k`, `3.4M`, `2B`."""
    for limit, unit in ((10**9, "B"), (10**6, "M"), (10**3, "k")):
        if abs(count) >= limit:
            return f"{count / limit:.3g}{unit}"
    return f"{count:.3g}" if count % 1 else f"{count:.0f}"
