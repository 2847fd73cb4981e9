"""The generation fence: a gang that was replaced can no longer commit a checkpoint.

Each forming of a gang takes the next number by creating `generations/<number>.json` in the checkpoints folder of its
fingerprint, create-only; it is current while the next number does not exist. The numbers grow over attempts and runs.
An attempt that finds its own replaced by another's takes no further one: cut off from the cluster and not from the
store, it would otherwise end the gang that was formed in its place.
"""

from marin import fs
from marin.base.errors import StepError, StoreError
from marin.base.json import dumps
from marin.run.order import Identity


class Fence:
    """The generations of one fingerprint's checkpoints."""

    def __init__(self, checkpoints: str) -> None:
        self._folder = fs.join(checkpoints, "generations")
        self._mine: int | None = None

    def advance(self, identity: Identity) -> int:
        """Take the next generation, which ends every earlier one; the first is 1.

        Raises StepError when another attempt has taken one since this one did.
        """
        names = [name.removesuffix(".json") for name in fs.list_folder(self._folder)]
        taken = [int(name) for name in names if name.isdigit()]
        if self._mine is not None and max(taken, default=0) > self._mine:
            raise StepError(
                f"another attempt has formed the gang anew since generation {self._mine}, and this one ends",
                where=f"step {identity.name}, attempt {identity.attempt}",
                hint="nothing is lost: look at the newer attempt",
            )
        record = dumps({"run": identity.run, "attempt": identity.attempt}).encode()
        for number in range(max(taken, default=0) + 1, max(taken, default=0) + 1000):
            if fs.create(self._url(number), record):
                self._mine = number
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
