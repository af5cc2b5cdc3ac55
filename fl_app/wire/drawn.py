"""Drawn positions: random sets that both ends make from a seed, so that a blob needs no positions."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from fl_app.wire.patterns import Array
from fl_app.wire.random_set import draw_coordinates

SEED_BYTES = 8


class Drawn(NamedTuple):
    """Public random positions of named tensors."""

    seed: int
    """Whole number of 63 bits."""
    counts: Mapping[str, int]
    """Number of positions of each tensor; a tensor that is missing may be non-zero anywhere."""

    def positions(self, name: str, n: int) -> Array:
        """Return the positions in a tensor of ``n`` entries, in order."""
        return drawn_positions(self.seed, name, n, self.counts[name])


@lru_cache(maxsize=64)
def drawn_positions(seed: int, name: str, n: int, count: int) -> Array:
    """Return ``count`` of ``n`` positions for the tensor ``name``; do not write into the result."""
    digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=SEED_BYTES).digest()
    drawn: Array = draw_coordinates(n, count, int.from_bytes(digest, "big") >> 1).numpy().astype(np.int64)
    drawn.flags.writeable = False
    return drawn
