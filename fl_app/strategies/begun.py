"""The note of a round that is about to ask clients for something."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Begun:
    """The request of a round; after a crash it may have been answered."""

    round: int
    attempt: int
    """Number of earlier attempts at the round."""
    clients: list[int]
    unmasking: bool = False
    """Whether what secure aggregation hides is about to be revealed."""
