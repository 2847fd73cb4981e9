"""Choosing the next token: greedy, or sampled by temperature and top-p with a number that belongs to the token.

The number is a function of (seed, what is continued, how many tokens were drawn before), so that a completion does
not depend on what else is in its batch. Probabilities are fp64.
Shape letters: B rows, V vocabulary.
"""

import numpy as np
import torch
import xxhash
from torch import Tensor


def generator(seed: int, key: str) -> np.random.Generator:
    """Return the numbers of one row, a counter-based stream keyed by the seed and the row's key."""
    return np.random.Generator(np.random.Philox(key=xxhash.xxh3_128_intdigest(f"{seed}:{key}".encode())))


def choose(logits_BV: Tensor, draws_B: list[float], *, temperature: float, top_p: float) -> list[int]:
    """Return a token for each row: the likeliest at temperature 0, else where `draws_B` (0 to 1) falls.

    `top_p` keeps the fewest likeliest tokens that hold that much probability (Holtzman et al. 2020, section 3.1).
    """
    if temperature == 0:
        return [int(token) for token in logits_BV.argmax(dim=1)]
    shares_BV = torch.softmax(logits_BV.double() / temperature, dim=1)
    draws_B1 = torch.tensor(draws_B, dtype=torch.float64).unsqueeze(1)
    if top_p < 1:
        shares_BV, tokens_BV = shares_BV.sort(dim=1, descending=True, stable=True)
        before_BV = shares_BV.cumsum(dim=1) - shares_BV
        shares_BV = shares_BV.masked_fill(before_BV >= top_p, 0)
    sums_BV = shares_BV.cumsum(dim=1)
    places_B1 = torch.searchsorted(sums_BV, draws_B1 * sums_BV[:, -1:], right=True)
    last_B1 = (shares_BV > 0).sum(dim=1, keepdim=True) - 1 if top_p < 1 else sums_BV.shape[1] - 1
    places_B1 = torch.minimum(places_B1, torch.as_tensor(last_B1))
    chosen_B1 = tokens_BV.gather(1, places_B1) if top_p < 1 else places_B1
    return [int(token) for token in chosen_B1[:, 0]]
