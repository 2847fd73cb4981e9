"""Libraries that exports need where they are installed: transformers, which checks them and reads GGUF, and gguf.

They are optional, and slow to import, so this is a lazy door (docs/contributing/decisions/0001).
"""

import importlib.util
from collections.abc import Sequence

from marin.base.lazy import LazyModule

transformers = LazyModule("transformers")
gguf = LazyModule("gguf")


def absent(packages: Sequence[str]) -> list[str]:
    """Return those of these packages that are not installed; imports none of them."""
    return [name for name in packages if importlib.util.find_spec(name) is None]
