"""How fast texts become MinHash signatures, and how good these are, beside datasketch in the same run.

    pip install --target /tmp/peer --no-deps datasketch scipy
    PYTHONPATH=/tmp/peer python benchmarks/minhash.py

The texts are the sources of Python's standard library in pieces of 3,000 characters; both sides make shingles of five
words and as many hash values (112), on one core, and every figure is of CPU time. Quality: pairs of texts of which one
has some words changed, the estimate of either side against the true similarity of the sets of shingles.
"""

import argparse
import random
import re
import sysconfig
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from datasketch import MinHash as PeerMinHash

from marin.data.duplicate_rules import MinHash
from marin.data.minhash import sign_texts
from marin.data.words import texts_from

PIECE = 3000
RULE = MinHash()
NUM_HASHES = RULE.bands * RULE.rows
WORD = re.compile(rb"[a-z0-9\x80-\xff]+")


def pieces(megabytes: float) -> Iterator[str]:
    """Yield pieces of the standard library's sources."""
    left = megabytes * 1e6
    for path in sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py")):
        if "site-packages" in path.parts:
            continue
        text = path.read_text(errors="ignore")
        for at in range(0, len(text), PIECE):
            yield text[at : at + PIECE]
            left -= PIECE
            if left < 0:
                return


def shingles(text: str) -> set[bytes]:
    """Return the runs of five words of a text."""
    words = WORD.findall(text.lower().encode())
    return {b" ".join(words[at : at + RULE.ngram]) for at in range(max(1, len(words) - RULE.ngram + 1))}


def peer(texts: Sequence[str]) -> np.ndarray:
    """Return the signatures that datasketch gives."""
    signed = []
    for text in texts:
        minhash = PeerMinHash(num_perm=NUM_HASHES)
        minhash.update_batch(list(shingles(text)))
        signed.append(minhash.hashvalues)
    return np.stack(signed)


def ours(texts: Sequence[str]) -> np.ndarray:
    """Return the signatures that marin gives."""
    return sign_texts(texts_from(list(texts)), RULE).values


def speed(sign: Callable[[Sequence[str]], np.ndarray], texts: Sequence[str], rounds: int) -> float:
    """Return megabytes of UTF-8 a second of CPU time, the best of some rounds."""
    size = sum(len(text.encode()) for text in texts)
    best = 0.0
    for _ in range(rounds):
        begin = time.process_time()
        sign(texts)
        best = max(best, size / 1e6 / (time.process_time() - begin))
    return best


def changed(text: str, rng: random.Random) -> str:
    """Return the text with some of its words replaced."""
    words = text.split()
    for _ in range(rng.randrange(1, max(2, len(words) // 6))):
        words[rng.randrange(len(words))] = f"w{rng.randrange(10**6)}"
    return " ".join(words)


def errors(sign: Callable[[Sequence[str]], np.ndarray], pairs: Sequence[tuple[str, str]]) -> np.ndarray:
    """Return estimate minus truth of each pair."""
    signed = sign([text for pair in pairs for text in pair])
    estimates = (signed[0::2] == signed[1::2]).mean(axis=1)
    sets = [(shingles(left), shingles(right)) for left, right in pairs]
    return estimates - np.array([len(left & right) / len(left | right) for left, right in sets])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=24)
    parser.add_argument("--peer-megabytes", type=float, default=3)
    options = parser.parse_args()
    texts = list(pieces(options.megabytes))
    few = texts[: max(1, int(options.peer_megabytes * 1e6 / PIECE))]
    mine, theirs = speed(ours, texts, 5), speed(peer, few, 2)
    print(f"marin       {mine:8.1f} MB/s a core")
    print(f"datasketch  {theirs:8.1f} MB/s a core    ratio {mine / theirs:.0f}")
    rng = random.Random(0)
    pairs = [(text, changed(text, rng)) for text in rng.sample([text for text in texts if len(text) == PIECE], 400)]
    for name, sign in (("marin", ours), ("datasketch", peer)):
        error = errors(sign, pairs)
        print(
            f"{name:11} estimate less truth: mean {error.mean():+.4f}, root mean square {(error**2).mean() ** 0.5:.4f}"
        )


if __name__ == "__main__":
    main()
