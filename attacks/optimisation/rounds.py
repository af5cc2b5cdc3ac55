"""Several rounds of one client, as the server saw them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False)
class Rounds:
    """The models that the client received, oldest first, and the sums it had sent before."""

    states: tuple[Mapping[str, Tensor], ...]
    """Parameters and buffers by name."""
    running: bool
    """Whether error feedback accumulates gradients over rounds."""
    before: Tensor
    """Sum of the entries sent before each round (rounds * n,), zero without error feedback."""

    def is_like(self, other: Rounds | None) -> bool:
        """Return whether another client saw the same models in the same way."""
        if other is None or len(self.states) != len(other.states) or self.running != other.running:
            return False
        return all(
            one.keys() == two.keys() and all(one[name].equal(two[name]) for name in one)
            for one, two in zip(self.states, other.states, strict=True)
        )
