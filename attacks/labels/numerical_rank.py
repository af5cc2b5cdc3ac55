"""Rank of a rounded matrix, from the gaps between its singular values.

No absolute size tells a singular value from rounding: gradients of an untrained network in eval
mode may be as small as 1e-13, and those of another as large as 70.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

GAP = 10.0
"""Factor by which a singular value must fall for the rank to end there."""
CLEAR = 4.0
"""Likewise, where the values below match the expected rounding to a factor of `LEVEL`."""
LEVEL = 2.0
WIDE = 100.0
"""Likewise, where the values below exceed rounding."""
SUMS = 32.0
"""Factor by which sums of many products may lift rounding above that of single entries."""


class Rank(NamedTuple):
    """A rank, and the assumptions behind it."""

    number: int
    notes: list[str]


def numerical_rank(singular: Tensor, rounding: float, samples: int | None = None) -> Rank:
    """Return the rank behind the descending ``singular`` values of a gradient.

    ``rounding`` is the largest singular value that rounding alone is expected to make. The rank
    ends at the last gap below which nothing but rounding is left. Where there is none,
    or where it comes after more than ``samples``, the gradient was rewritten: then the rank
    is taken to be ``samples`` or, if that is not known, to end at a gap of `WIDE`.
    """
    followed = torch.cat([singular, singular.new_zeros(1)])
    lifted = followed.clamp(min=rounding)
    gaps, rest = lifted[:-1] / lifted[1:], followed[1:] / rounding
    # far below the expected rounding it is none, and a value above it may be all that rounding did
    clear = (gaps >= CLEAR) & (rest >= 1 / LEVEL) & (rest <= LEVEL)
    ends = (clear | ((gaps >= GAP) & (rest <= SUMS))).nonzero().flatten() + 1
    full = len(singular)
    last = int(ends[-1]) if len(ends) else full
    if samples is not None and last > samples:
        seen = f"rank {last}" if len(ends) else "no gap between its singular values"
        return Rank(samples, [f"a rewritten gradient ({seen}): rank {samples} taken from the batch size"])
    if samples is None and last == full > 1 and gaps[:-1].max() >= WIDE:
        widest = int(gaps[:-1].argmax()) + 1
        return Rank(widest, [f"a rewritten gradient (rank {full}): rank {widest} by its widest gap"])
    return Rank(last, [])
