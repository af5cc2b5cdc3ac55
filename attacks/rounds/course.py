"""Several rounds of one client, as the server saw them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Rounds:
    """The models that the client received, oldest first, and the sums it had sent before."""

    states: tuple[Mapping[str, Tensor], ...]
    """Parameters and buffers by name."""
    memory: float
    """Share of what was withheld that is added to the next round: 0 without error feedback."""
    before: Tensor
    """Sum of the entries sent before each round (rounds * n,), each weighted as its residual is."""
    stream: bool = False
    """Whether every round has samples of its own; else all have the same."""
    causal: bool = False
    """Whether a round moves the guess for its own samples alone, and not that for earlier ones."""

    def of(self, number: int, samples: int) -> slice:
        """Return which of a guess's samples belong to a round."""
        share = samples // len(self.states) if self.stream else samples
        first = number * share if self.stream else 0
        return slice(first, first + share)

    def is_like(self, other: Rounds | None) -> bool:
        """Return whether another client saw the same models in the same way."""
        if other is None or len(self.states) != len(other.states):
            return False
        if self.memory != other.memory or self.stream != other.stream:
            return False
        return all(
            one.keys() == two.keys() and all(one[name].equal(two[name]) for name in one)
            for one, two in zip(self.states, other.states, strict=True)
        )


def carried(per_round: Tensor, memory: float, *, causal: bool = False) -> Tensor:
    """Return what has come together by each round (T, ...), of which a share is kept from round to round.

    ``causal``: what earlier rounds left has no slope.
    """
    if causal:
        fixed = per_round.detach()
        return per_round + carried(fixed, memory) - fixed
    if memory == 0:
        return per_round
    if memory == 1:
        return per_round.cumsum(dim=0)
    total, sums = per_round[0], [per_round[0]]
    for row in per_round[1:]:
        total = memory * total + row
        sums.append(total)
    return torch.stack(sums)
