"""Note of a round that is about to send requests to clients."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Begun:
    """Request of a round; clients may have answered it before a crash."""

    round: int
    attempt: int
    """Number of earlier attempts at the round."""
    clients: list[int]
    unmasking: bool = False
    """True if secure aggregation is about to reveal the sum."""
