"""How long this process goes on where storage does not answer: at a terminal not for long, in a worker a minute."""

SECONDS = 60.0
"""As long as a driver waits for its heartbeat: whoever is patient for longer works for a run that has given up."""

_patience = 0.0


def be_patient(seconds: float = SECONDS) -> None:
    """Let this process try for so long, from now on, before it gives a call up; for workers, who have work in hand."""
    global _patience  # noqa: PLW0603  a process is a worker or is none
    _patience = seconds


def patience() -> float:
    """Return for how many seconds a call is tried again at least."""
    return _patience
