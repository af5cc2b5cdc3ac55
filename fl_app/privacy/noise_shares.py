"""Shares of a round's noise: one per client of the cohort, and the noise against each observer.

No client adds all the noise that a model needs: each adds a share, and the sum of the shares hides any one
client (Kerkouche et al., UAI 2021, §3.2). Noise multipliers are standard deviations over the clipping bound.

The noise of a released sum must not depend on the participants: thousands of coordinates expose its variance,
which would reveal a client's presence. So the server adds the shares of clients whose vector is not in the
sum. Every released sum then carries the same noise, for any cohort and any dropouts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class NoiseShares:
    """The noise of one round, in equal shares."""

    noise_multiplier: float
    """sigma, the noise multiplier of the released sum."""
    cohort: int
    """Number of clients in the participant list."""
    threshold: int | None = None
    """Threshold of secure aggregation; None: not used, and the server sees every update."""
    honest: float = 1.0
    """Assumed share of the cohort that keeps its noise from the server."""

    def __post_init__(self) -> None:
        """Refuse values that protect nobody."""
        if not 0 <= self.noise_multiplier < math.inf:
            raise ValueError(
                f"NoiseShares: noise_multiplier must be finite and at least 0, got {self.noise_multiplier}"
            )
        if self.cohort < 1:
            raise ValueError(f"NoiseShares: cohort must be at least 1, got {self.cohort}")
        if not 0 < self.honest <= 1:
            raise ValueError(f"NoiseShares: honest must be in (0, 1], got {self.honest}")
        least = 2 * self.cohort // 3 + 1
        if self.threshold is not None and not least <= self.threshold <= self.cohort:
            raise ValueError(
                f"NoiseShares: the threshold of {self.cohort} clients must be in {least}..{self.cohort}, "
                f"got {self.threshold}"
            )

    @property
    def local(self) -> float:
        """Return the noise multiplier of one share."""
        return self.noise_multiplier / math.sqrt(self.cohort)

    def missing(self, survivors: int) -> float:
        """Return the noise multiplier that the server must add to a sum over ``survivors`` clients."""
        self._check(survivors)
        return self.local * math.sqrt(self.cohort - survivors)

    def for_server(self, survivors: int | None = None) -> float:
        """Return the noise multiplier that protects a client from the server; None: in the worst case.

        With secure aggregation only the shares of the other honest survivors count. The server knows its own
        noise and that of colluding clients, and possibly none of these dropped out. The protected client's
        share is missing too when that client is absent.
        """
        if self.threshold is None:
            return self.local
        survivors = self.threshold if survivors is None else survivors
        self._check(survivors)
        return self.local * math.sqrt(max(0, survivors - self.colluding - 1))

    @property
    def colluding(self) -> int:
        """Return the number of clients in the cohort that may reveal their noise to the server."""
        # a share such as 0.9 of ten leaves one, despite float rounding
        return math.floor((1 - self.honest) * self.cohort + 1e-9)

    def _check(self, survivors: int) -> None:
        if not 0 <= survivors <= self.cohort:
            raise ValueError(f"NoiseShares: survivors must be in 0..{self.cohort}, got {survivors}")
