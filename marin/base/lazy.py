"""A module that is imported at its first use.

For the doors that the architecture test names and no other: `import marin` must stay light, and an import inside
a function hides a circle.
"""

import importlib
from typing import Any


class LazyModule:
    """Stands for a third-party module; the first attribute access imports it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:  # Any: whatever the module holds
        return getattr(importlib.import_module(self._name), attribute)


def resolve(reference: str) -> Any:  # Any: the caller knows what it named
    """Return the object that `package.module:name` names, importing the module."""
    module, _, name = reference.partition(":")
    return getattr(importlib.import_module(module), name)
