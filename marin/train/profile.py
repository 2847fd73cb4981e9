"""What to record of how a training spends its time. No torch here."""

from pydantic import Field, field_validator

from marin import fs
from marin.base.config import Config, Several


class Profile(Config):
    """Operators and kernels of a few steps as a Chrome trace, a file for each rank that is named.

    A run that continues behind `first_step` records nothing.
    """

    url: str
    """Folder of the traces, local or remote: `steps-00000020-rank-0.trace.json`."""
    first_step: int = Field(default=20, ge=0)
    """Number of the first step that is recorded; the first ones of a run are not like the others."""
    num_steps: int = Field(default=3, ge=1, le=100)
    """A trace has some megabytes a step."""
    ranks: Several[int] = (0,)
    memory: bool = False
    """Allocations too; on CUDA a second file, `...memory.pickle`, says what holds memory and where it was asked for."""

    @field_validator("url")
    @classmethod
    def _absolute(cls, url: str) -> str:
        """Take a relative path from here, not from where a rank happens to run."""
        return fs.normalise(url)
