"""The generation fence: a gang that was replaced can no longer commit a checkpoint.

Each forming of a gang takes the next number by creating `generations/<number>.json` in the checkpoints folder of its
fingerprint, create-only; it is current while the next number does not exist. The numbers grow over attempts and runs.
"""

from marin import fs
from marin.base.errors import StoreError
from marin.base.json import dumps
from marin.run.order import Identity


class Fence:
    """The generations of one fingerprint's checkpoints."""

    def __init__(self, checkpoints: str) -> None:
        self._folder = fs.join(checkpoints, "generations")

    def advance(self, identity: Identity) -> int:
        """Take the next generation, which ends every earlier one; the first is 1."""
        names = [name.removesuffix(".json") for name in fs.list_folder(self._folder)]
        taken = [int(name) for name in names if name.isdigit()]
        record = dumps({"run": identity.run, "attempt": identity.attempt}).encode()
        for number in range(max(taken, default=0) + 1, max(taken, default=0) + 1000):
            if fs.create(self._url(number), record):
                return number
        raise StoreError("no generation could be taken", where=self._folder, hint="look for runs that fight over it")

    def is_current(self, generation: int) -> bool:
        """Whether no later generation was formed."""
        return not fs.exists(self._url(generation + 1))

    def _url(self, number: int) -> str:
        return fs.join(self._folder, f"{number:06d}.json")


def verified_checkpoints(checkpoints: str) -> frozenset[str]:
    """Return the names of the checkpoints whose manifest is there; a new one renews a gang's budget."""
    _, entries = fs.glob(fs.join(checkpoints, "*", "MANIFEST.json"))
    return frozenset(entry.url for entry in entries)
