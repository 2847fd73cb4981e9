"""What a process tells Ray before it imports it: quiet logs, how soon to miss a host, and the user's token if any.

Ray reads these variables when it is imported. It writes a token into the user's home when a cluster is started, and
guards the cluster with it; a driver that connects does not send it unasked.
"""

import os
from pathlib import Path

from marin.base.errors import ConfigurationError

QUIET_RAY = {
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".*",  # Ray prints worker deaths on the driver's standard output; marin reports them
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # silences a warning about tasks without GPUs
}
WATCHFUL_RAY = {
    # Whoever waits for a task of a host that is cut off, or has no power any more, hears nothing from that host ever
    # again. Ray would ask after 300 s and wait another 120 for the answer, although it knows long before that the
    # host is lost: then a map's shard is run again after 7 minutes.
    "RAY_grpc_client_keepalive_time_ms": "20000",
    "RAY_grpc_client_keepalive_timeout_ms": "20000",
    # A head that was started without these finds such questions too many, closes that connection, and is called again
    # more rarely: no work is lost, but each time there would be a line on the terminal and in the logs of ranks.
    "GRPC_VERBOSITY": "NONE",
}
TOKEN_PLACES = "RAY_AUTH_TOKEN, the file RAY_AUTH_TOKEN_PATH, or ~/.ray/auth_token"


def settle_ray(address: str | None) -> None:
    """Set what Ray reads at its import; what the user has set stays."""
    settings = QUIET_RAY | WATCHFUL_RAY
    token = find_token() if address else ""
    if not (token.isascii() and token.isprintable()):
        raise ConfigurationError(
            "the token here has a character that no token can have, such as a line break",
            where=TOKEN_PLACES,
            hint="give it again, as `ray get-auth-token` shows it on the head",
        )
    if token:
        settings["RAY_AUTH_MODE"] = "token"
    for variable, value in settings.items():
        os.environ.setdefault(variable, value)


def watchful() -> dict[str, str]:
    """Return what workers are to be told, as this process was."""
    return {name: os.environ.get(name, value) for name, value in WATCHFUL_RAY.items()}


def find_token() -> str:
    """Return the token where Ray looks for it; empty when there is none."""
    if token := os.environ.get("RAY_AUTH_TOKEN", "").strip():
        return token
    named = os.environ.get("RAY_AUTH_TOKEN_PATH")
    place = Path(named).expanduser() if named else Path.home() / ".ray" / "auth_token"
    try:
        return place.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""


def token_hint() -> str:
    """Return what to do when a cluster does not accept what this user has."""
    mode = os.environ.get("RAY_AUTH_MODE", "")
    if mode and mode.lower() != "token":
        more = "" if find_token() else f", and put the cluster's token into {TOKEN_PLACES}"
        return f"RAY_AUTH_MODE={mode} here keeps Ray from sending a token: unset it{more}"
    if not find_token():
        return f"the cluster wants a token and there is none here: put it into {TOKEN_PLACES}"
    return f"the token here is not the cluster's: mend {TOKEN_PLACES}; on its head, `ray get-auth-token` shows it"
