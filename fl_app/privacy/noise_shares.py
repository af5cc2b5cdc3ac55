"""How the noise of a round is divided among its clients, and how much of it an observer faces.

No client adds all the noise that a model needs: each adds a share, and the sum of
the shares hides any one client (Kerkouche et al., UAI 2021, §3.2). Noise multipliers
are standard deviations over the clipping bound.

Two federations are compared in which one client's values differ or are zeros. That
with shares for a threshold a larger cohort also carries more noise is not counted:
in many coordinates it can be seen, and tells how many took part.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

SHARES = ("threshold", "cohort")
"""threshold: enough for the fewest clients whose sum is ever unmasked; cohort: only if none drops out."""


@dataclass(frozen=True)
class NoiseShares:
    """The noise of one round.

    With a threshold t of secure aggregation, no sum of fewer than t clients is
    ever seen. Each client then adds a variance of ``sigma^2 / t``, so that whoever
    drops out, the sum of the others carries ``sigma^2`` or more. The client who is
    to be protected takes its own share along when it stays away: t - 1 shares count.

    With ``share="cohort"``, as in the paper, each of the cohort's k clients adds
    ``sigma^2 / k``: s survivors carry s / k of the noise. Without the protected
    client these are s - 1 shares of ``sigma^2 / (k - 1)``, which is what counts.
    The same holds without secure aggregation, where there is no threshold.
    """

    noise_multiplier: float
    """sigma, the noise multiplier of the whole sum."""
    cohort: int
    """How many clients the participant list names."""
    threshold: int | None = None
    """Of secure aggregation; None: there is none, and the server sees every update."""
    share: str = "threshold"

    def __post_init__(self) -> None:
        """Refuse what would be noise for nobody."""
        if self.share not in SHARES:
            raise ValueError(f"NoiseShares: share must be one of {', '.join(SHARES)}; got {self.share!r}")
        if not 0 <= self.noise_multiplier < math.inf:
            raise ValueError(
                f"NoiseShares: noise_multiplier must be finite and at least 0, got {self.noise_multiplier}"
            )
        if self.cohort < 1:
            raise ValueError(f"NoiseShares: cohort must be at least 1, got {self.cohort}")
        if self.threshold is not None and not 1 <= self.threshold <= self.cohort:
            raise ValueError(f"NoiseShares: threshold must be in 1..{self.cohort}, got {self.threshold}")

    @property
    def local(self) -> float:
        """Return the noise multiplier of one client's own share."""
        return self.noise_multiplier / math.sqrt(self._divisor)

    def of_sum(self, survivors: int) -> float:
        """Return the noise multiplier that protects a client in the sum over ``survivors`` clients.

        0, no protection, for a client that is alone. With shares for a threshold the
        survivors do not matter: below it there is no sum, and above it more noise is
        there than what is counted.
        """
        if not 0 <= survivors <= self.cohort:
            raise ValueError(f"NoiseShares: survivors must be in 0..{self.cohort}, got {survivors}")
        if self._by_threshold:
            kept, of = self._divisor - 1, self._divisor
        else:
            kept, of = max(0, survivors - 1), max(1, self.cohort - 1)
        return self.noise_multiplier * math.sqrt(kept / of)

    def least(self) -> float:
        """Return `of_sum` for the fewest survivors with which a round succeeds: what a round may cost."""
        return self.of_sum(self.cohort if self.threshold is None else self.threshold)

    def for_server(self, survivors: int) -> float:
        """Return the noise multiplier that protects a client from the server."""
        return self.local if self.threshold is None else self.of_sum(survivors)

    @property
    def _by_threshold(self) -> bool:
        return self.share == "threshold" and self.threshold is not None

    @property
    def _divisor(self) -> int:
        return self.threshold if self._by_threshold and self.threshold is not None else self.cohort


def whole_noise(counted: float, threshold: int) -> float:
    """Return the sigma of which t - 1 of t shares are ``counted``."""
    if threshold < 2:
        raise ValueError(f"whole_noise: threshold must be at least 2, got {threshold}")
    # a few roundings above, so that the way back does not end below
    return counted * math.sqrt(threshold / (threshold - 1)) * (1 + 1e-12)
