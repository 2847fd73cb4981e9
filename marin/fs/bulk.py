"""Many small reads at once: what planning and screens ask of a store that answers late.

Invariant: an answer is the same as asking one by one; only the waiting is shared. A local disk answers sooner than a
thread does, so threads are used there only when the first files were slow (such as on NFS).
"""

import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from marin.fs.faults import NotFound
from marin.fs.listing import list_folder
from marin.fs.location import REMOTE_CONNECTIONS, is_local
from marin.fs.read import exists, read

T = TypeVar("T")

_FIRST = 64  # local files read before it is decided whether threads pay
_SLOW_SECONDS = 0.0005  # an answer; from the page cache it takes 0.02 ms alone and 0.08 ms through 8 threads
_LOCAL_THREADS = 8


def ask_each(call: Callable[[str], T], urls: Iterable[str], *, threads: int | None = None) -> dict[str, T]:
    """Return `call(url)` by URL, in the order of the URLs; the first error is raised.

    Without a number of `threads`, as many are used as pay for where the URLs lead.
    """
    wanted = list(dict.fromkeys(urls))
    answers: dict[str, T] = {}
    if threads is None:
        threads = REMOTE_CONNECTIONS
        if all(is_local(url) for url in wanted):
            began = time.perf_counter()
            answers = {url: call(url) for url in wanted[:_FIRST]}
            slow = time.perf_counter() - began > _FIRST * _SLOW_SECONDS
            threads = _LOCAL_THREADS if slow else 1
    left = wanted[len(answers) :]
    if threads == 1 or len(left) <= 1:
        return answers | {url: call(url) for url in left}
    with ThreadPoolExecutor(min(threads, len(left))) as pool:
        try:
            return answers | dict(zip(left, pool.map(call, left), strict=True))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)  # one refusal is enough to know
            raise


def read_many(urls: Iterable[str], *, threads: int | None = None) -> dict[str, bytes]:
    """Return the bytes of each file by URL; absent ones are left out. Raises StoreError as `read` does."""
    found = ask_each(_read_or_none, urls, threads=threads)
    return {url: data for url, data in found.items() if data is not None}


def exists_many(urls: Iterable[str], *, threads: int | None = None) -> set[str]:
    """Return those URLs under which a file or folder is there."""
    return {url for url, there in ask_each(exists, urls, threads=threads).items() if there}


def list_folders(urls: Iterable[str], *, threads: int | None = None) -> dict[str, list[str]]:
    """Return the sorted names of each folder's children by URL; an absent folder has none."""
    return ask_each(list_folder, urls, threads=threads)


def decode_many(urls: Iterable[str], decode: Callable[[str, bytes], T | None]) -> dict[str, T]:
    """Return what `decode(url, data)` makes of each file by URL, without absent ones and Nones.

    Decoding takes place while other answers are waited for, and no more raw bytes are held than are under way.
    """

    def decoded(url: str) -> T | None:
        data = _read_or_none(url)
        return None if data is None else decode(url, data)

    return {url: each for url, each in ask_each(decoded, urls).items() if each is not None}


def _read_or_none(url: str) -> bytes | None:
    try:
        return read(url)
    except NotFound:
        return None
