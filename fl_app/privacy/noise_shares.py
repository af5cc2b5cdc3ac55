"""Division of a round's noise among its clients, and the noise that each observer faces.

No client adds all the noise that a model needs: each adds a share, and the sum of
the shares hides any one client (Kerkouche et al., UAI 2021, §3.2). Noise multipliers
are standard deviations over the clipping bound.

The noise of a sum must not reveal the number of participants: it would reveal a client's presence, and
over thousands of coordinates a variance is easy to estimate. A share is therefore a fixed part of the
cohort's: if no client drops out, all cohorts carry the same noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

SHARES = ("threshold", "cohort")
"""threshold: enough for the fewest clients whose sum is ever unmasked; cohort: only if none drops out."""


@dataclass(frozen=True)
class NoiseShares:
    """The noise of one round.

    With a threshold t of secure aggregation, which is more than two thirds of the
    cohort's k clients, no sum of fewer than t is ever seen. Each client then adds a
    variance of ``sigma^2 / (2 k / 3)``, so that the sum of the remaining
    clients carries ``sigma^2`` or more, whichever drop out. An absent protected client
    removes its own share, too: t - 1 shares count.

    With ``share="cohort"``, as in the paper, each of the cohort's k clients adds
    ``sigma^2 / k``: s survivors carry s / k of the noise. Without the protected
    client these are s - 1 shares of ``sigma^2 / (k - 1)``, which is what counts.
    The same holds without secure aggregation, where there is no threshold.
    """

    noise_multiplier: float
    """sigma, the noise multiplier of the whole sum."""
    cohort: int
    """Number of clients in the participant list."""
    threshold: int | None = None
    """Of secure aggregation; None: there is none, and the server sees every update."""
    share: str = "threshold"

    def __post_init__(self) -> None:
        """Refuse settings under which no client adds noise."""
        if self.share not in SHARES:
            raise ValueError(f"NoiseShares: share must be one of {', '.join(SHARES)}; got {self.share!r}")
        if not 0 <= self.noise_multiplier < math.inf:
            raise ValueError(
                f"NoiseShares: noise_multiplier must be finite and at least 0, got {self.noise_multiplier}"
            )
        if self.cohort < 1:
            raise ValueError(f"NoiseShares: cohort must be at least 1, got {self.cohort}")
        least = 2 * self.cohort // 3 + 1
        if self.threshold is not None and not least <= self.threshold <= self.cohort:
            raise ValueError(
                f"NoiseShares: the threshold of {self.cohort} clients must be in {least}..{self.cohort}, "
                f"got {self.threshold}"
            )

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
        if self._threshold is not None:
            kept, of = float(self._threshold - 1), self._divisor
        else:
            kept, of = max(0.0, survivors - 1), max(1.0, self.cohort - 1)
        return self.noise_multiplier * math.sqrt(kept / of)

    def least(self) -> float:
        """Return `of_sum` for the fewest survivors with which a round succeeds: a round's largest cost."""
        return self.of_sum(self._fewest)

    def for_server(self, survivors: int | None = None) -> float:
        """Return the noise multiplier that protects a client from the server; None: in the worst case."""
        survivors = self._fewest if survivors is None else survivors
        return self.local if self.threshold is None else self.of_sum(survivors)

    @property
    def _fewest(self) -> int:
        return self.cohort if self.threshold is None else self.threshold

    @property
    def _threshold(self) -> int | None:
        """The threshold, if the shares are made for it."""
        return self.threshold if self.share == "threshold" else None

    @property
    def _divisor(self) -> float:
        return self.cohort if self._threshold is None else 2 * self.cohort / 3


def whole_noise(counted: float, cohort: int) -> float:
    """Return the sigma that counts as ``counted``, with shares for a threshold, from that cohort up."""
    if cohort < 2:
        raise ValueError(f"whole_noise: cohort must be at least 2, got {cohort}")
    # 2 k / 3 shares make sigma, and whole ones count: of three sizes in a row one loses most, later ones less
    lost = max((2 * k / 3) / (2 * k // 3) for k in range(cohort, cohort + 3))
    # a few roundings above, so that the way back does not end below
    return counted * math.sqrt(lost) * (1 + 1e-12)
