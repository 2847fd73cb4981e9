"""Remembered probes: whether the fast encoder agreed with the truth for a tokenizer, under versions of both.

A small JSON file each, in the user's cache folder. It is a convenience: without it, or with a damaged one, the probe
runs again. Invariant: what is remembered is keyed by all that the answer depends on, so no answer is ever wrong.
"""

import contextlib
import hashlib
import json
import os
import tempfile
from importlib.metadata import version
from pathlib import Path

from marin.fs.pins import default_memo

PROBE = 2
"""Number of the probe's texts and rules: another number forgets all answers."""


def memo_folder() -> Path:
    """Return where answers are remembered."""
    return default_memo().parent / "encoders"


def recall(folder: Path, tokenizer_json: bytes) -> str | None:
    """Return what a probe of this tokenizer found: an empty string for agreement, else the reason; None if unknown."""
    try:
        record = json.loads(_path(folder, tokenizer_json).read_bytes())
    except (OSError, ValueError):
        return None
    reason = record.get("reason") if isinstance(record, dict) else None
    return reason if isinstance(reason, str) else None


def remember(folder: Path, tokenizer_json: bytes, reason: str) -> None:
    """Remember what a probe found; nothing is said when the folder cannot be written."""
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=folder)
        with os.fdopen(handle, "w") as file:
            json.dump({"reason": reason}, file)
        os.replace(name, _path(folder, tokenizer_json))


def _path(folder: Path, tokenizer_json: bytes) -> Path:
    versions = f"{PROBE} fastokens {version('fastokens')} tokenizers {version('tokenizers')}"
    digest = hashlib.sha256(f"{versions} {hashlib.sha256(tokenizer_json).hexdigest()}".encode()).hexdigest()
    return folder / f"{digest}.json"
