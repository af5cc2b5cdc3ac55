"""Random sets of positions that both ends draw from the same seed: FL-BASIC's, and common supports.

The numbers come from SHAKE-256, which is a published standard: they are the same
on every device and with every version of every library.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from torch import Tensor


def draw_coordinates(n: int, count: int, seed: int) -> Tensor:
    """Return ``count`` of ``n`` coordinates; every set of that size is equally likely."""
    if not 1 <= count <= n:
        raise ValueError(f"draw_coordinates: count must be in 1..{n}, got {count}")
    if 2 * count <= n:
        drawn = _first_distinct(n, count, seed)
    else:  # fewer draws are needed to say what is left out
        drawn = np.delete(np.arange(n), _first_distinct(n, n - count, seed))
    return torch.from_numpy(np.sort(drawn))


def random_words(count: int, seed: int, purpose: str) -> np.ndarray:
    """Return the first ``count`` 64-bit words of the stream that seed and purpose name."""
    stream = hashlib.shake_256(f"{purpose}/{seed}".encode()).digest(8 * count)
    return np.frombuffer(stream, dtype="<u8")


def _first_distinct(n: int, count: int, seed: int) -> np.ndarray:
    """Return the first ``count`` different numbers of an endless row of uniform draws from 0..n-1."""
    words = 2 * count + 64
    while True:
        stream = random_words(words, seed, "coordinates")
        # words beyond the last whole multiple of n would make low numbers likelier
        fair = stream[stream < np.uint64(2**64 // n * n)] if 2**64 % n else stream
        numbers, first = np.unique(fair % np.uint64(n), return_index=True)
        if len(numbers) >= count:
            return numbers[np.argsort(first)[:count]].astype(np.int64)
        words *= 2
