"""Best-fit decreasing: sizes into bins of one capacity, at the speed of lists.

Sizes are taken from the largest to the smallest, each into the bin with the least room that holds it (D. S. Johnson,
Near-optimal bin packing algorithms, 1973; for training rows: Ding et al., arXiv:2404.10830). Equal sizes are placed
together: bins are kept by their room, and a number whose bits say which rooms occur finds the least one that is enough.
"""

import numpy as np


def best_fit(sizes: np.ndarray, capacity: int) -> np.ndarray:
    """Return the bin of each size, int64 [N]; all sizes must be in 1..capacity."""
    order = np.argsort(-sizes, kind="stable")
    distinct, counts = np.unique(-sizes, return_counts=True)
    levels: list[list[int]] = [[] for _ in range(capacity + 1)]  # bins by room
    rooms = 0  # bit r: there are bins with room r
    num_bins = 0
    placed: list[int] = []
    for size, count in zip((-distinct).tolist(), counts.tolist(), strict=True):
        left = count
        while left:
            enough = rooms >> size
            if enough:
                room = size + (enough & -enough).bit_length() - 1
                bins = levels[room]
            else:
                room = capacity
                needed = -(-left // (capacity // size))
                bins = list(range(num_bins, num_bins + needed))
                num_bins += needed
            # The least room that is enough stays the least while a bin takes one after another.
            each = room // size
            full = min(len(bins), left // each)
            if full:
                taken = bins[-full:]
                del bins[-full:]
                placed += taken if each == 1 else [number for number in taken for _ in range(each)]
                left -= full * each
                levels[room - each * size] += taken
                rooms |= 1 << (room - each * size)
            if bins and 0 < left < each:
                last = bins.pop()
                placed += [last] * left
                levels[room - left * size].append(last)
                rooms |= 1 << (room - left * size)
                left = 0
            if not levels[room]:
                rooms &= ~(1 << room)
    result = np.empty(len(sizes), np.int64)
    result[order] = placed
    return result
