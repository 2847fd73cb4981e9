"""Content hashes: what makes a document the same document, and where it stands in a shuffled order.

Invariant: nothing here depends on the machine, the process, or how data are grouped into shards. These numbers are
in files that people keep: a changed constant changes every order that was ever made.
"""

import hashlib
from collections.abc import Sequence

import numpy as np
import xxhash

from marin.base.json import Json, dumps
from marin.graph.files import FileRef, Shard

U64 = np.dtype("<u8")


def text_hash(text: str, seed: int = 0) -> int:
    """Return 64 bits of the text alone: copies of a text agree, whatever they are called."""
    return xxhash.xxh3_64_intdigest(text.encode(), seed=seed)


def document_id(text: str, name: str) -> bytes:
    """Return 16 bytes of text and name: copies under different names differ, so that each has its own place."""
    return encoded_document_id(text.encode(), name)


def encoded_document_id(text: bytes | memoryview, name: str) -> bytes:
    """Return `document_id` of a text that is UTF-8 already."""
    state = xxhash.xxh3_128(len(text).to_bytes(8, "little"))
    state.update(text)
    state.update(name.encode())
    return state.digest()


def mix64(values: np.ndarray) -> np.ndarray:
    """Return a bijective scrambling of uint64 values: the finaliser of splitmix64 (Steele et al. 2014)."""
    with np.errstate(over="ignore"):
        values = values ^ (values >> np.uint64(30))
        values = values * np.uint64(0xBF58476D1CE4E5B9)
        values = values ^ (values >> np.uint64(27))
        values = values * np.uint64(0x94D049BB133111EB)
        return np.asarray(values ^ (values >> np.uint64(31)))


def seed_hash(seed: int, purpose: str) -> np.uint64:
    """Return 64 bits of a seed for one purpose, so that two uses of one seed share nothing."""
    return np.uint64(xxhash.xxh3_64_intdigest(f"{purpose}:{seed}".encode()))


def order_keys(ids: np.ndarray, seed: int) -> np.ndarray:
    """Return uint64 [N], the place of each document in the shuffled order, from ids uint8 [N, 16]."""
    halves = np.ascontiguousarray(ids).view(U64)
    return mix64(halves[:, 1] ^ seed_hash(seed, "documents"))


def bundle(files: Sequence[FileRef], value: Json = None) -> Shard:
    """Return a shard of files that exist already; only their paths, contents and `value` make its digest."""
    record: Json = [[[file.path, file.size, file.digest] for file in files], value]
    digest = hashlib.sha256(dumps(record).encode()).hexdigest()
    return Shard(digest[:16], digest, tuple(files), value)
