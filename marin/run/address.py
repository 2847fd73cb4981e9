"""Addresses of a Ray cluster as people write them: its own for `marin run`, its dashboard's for `marin submit`.

Pure. A wrong one is a ConfigurationError before anything is asked, sent or written, and names the verb that would take
it. An address that holds a password is refused and never repeated.
"""

import re
from typing import NamedTuple

from marin.base.errors import ConfigurationError
from marin.run.ray_settings import TOKEN_PLACES

_HOST = re.compile(r"\[[0-9A-Fa-f:.]+(%\w+)?\]|[A-Za-z0-9_]([A-Za-z0-9._-]*[A-Za-z0-9_.])?")
_TAKES = '`marin run` takes "HOST:6379" or "ray://HOST:10001", `marin submit` the dashboard\'s `http://HOST:8265`'
_CLUSTER = 'write "HOST:6379" or "ray://HOST:10001"; without an address a private cluster is started here'
_DASHBOARD = "give that of the cluster's dashboard, `http://HOST:8265`"


class _Parts(NamedTuple):
    scheme: str
    host: str
    """With its brackets, if it is an IPv6 address."""
    port: int | None
    rest: str
    """Path, query and fragment, without slashes at the end."""

    @property
    def base(self) -> str:
        """The address without its rest."""
        scheme = f"{self.scheme}://" if self.scheme else ""
        return f"{scheme}{self.host}" + (f":{self.port}" if self.port is not None else "")


def cluster_address(text: str | None) -> str | None:
    """Return `HOST:PORT` or `ray://HOST:PORT` as Ray reads it; None for the private cluster of this machine."""
    if text in (None, "", "local"):
        return None
    parts = _split(str(text))
    if parts.scheme in ("http", "https"):
        hint = f"`marin submit --address {parts.base}` takes that of a dashboard; {_CLUSTER}"
        raise _wrong(f"{text!r} is the address of a dashboard, which `marin run` does not take", str(text), hint)
    if parts.scheme not in ("", "ray"):
        raise _wrong(f"{text!r} is no address of a Ray cluster", str(text), _CLUSTER)
    if parts.port is None:
        raise _wrong(f"{text!r} is no address of a Ray cluster: it has no port", str(text), _CLUSTER)
    if parts.rest:
        raise _wrong(f"{text!r} is no address of a Ray cluster: it has a path", str(text), f"give {parts.base}")
    return parts.base


def jobs_address(text: str) -> str:
    """Return `http://HOST:PORT` as Ray reads it; a path stays, for a proxy before the dashboard may need one."""
    parts = _split(text)
    if parts.scheme == "ray":
        hint = f"`marin run --address {parts.base}` takes it; {_DASHBOARD}"
        raise _wrong(f"{text!r} is an address of a Ray cluster, which `marin submit` does not take", text, hint)
    if parts.scheme not in ("http", "https"):
        hint = f"{_DASHBOARD}; `marin run` takes HOST:6379 and ray://"
        raise _wrong(f"{text!r} is no address of a Ray job server", text, hint)
    if re.search(r"^/api(/|$)|[?#]", parts.rest):
        raise _wrong(f"{text!r} is a page of a dashboard, not its address", text, f"give {parts.base}")
    return parts.base + parts.rest


def split_cluster(address: str) -> tuple[str, str, int]:
    """Return scheme (empty or `ray`), host without brackets, and port of an address that `cluster_address` returned."""
    parts = _split(address)
    return parts.scheme, parts.host.strip("[]"), parts.port or 0


def _split(text: str) -> _Parts:
    if "@" in text:
        raise ConfigurationError(
            "the address holds a user or a password, which Ray does not take",
            hint=f"leave out all up to the @; a cluster's token goes into {TOKEN_PLACES}",
        )
    before, mark, rest = text.rpartition("://") if "://" in text else ("", "", text)
    scheme = before.lower()
    if mark and not re.fullmatch(r"[a-z][a-z0-9+.-]*", scheme):
        raise _wrong(f"{text!r} is no address", text, _TAKES)
    end = re.search(r"[/?#]|$", rest)
    assert end is not None
    authority, tail = rest[: end.start()], rest[end.start() :].rstrip("/")
    found = re.fullmatch(rf"(?P<host>{_HOST.pattern})(:(?P<port>[^:\[\]]*))?", authority)
    if found is None:
        raise _wrong(f"{text!r} is no address", text, _TAKES + ("; IPv6 in brackets" if text.count(":") > 2 else ""))
    port = found["port"]
    if port is not None and not (re.fullmatch(r"[0-9]{1,5}", port) and 0 < int(port) < 65536):
        raise _wrong(f"{text!r} is no address: {port!r} is no port", text, f"a port is 1 to 65535: {_TAKES}")
    return _Parts(scheme, found["host"], int(port) if port else None, tail)


def _wrong(what: str, where: str, hint: str) -> ConfigurationError:
    return ConfigurationError(what, where=where, hint=hint)
