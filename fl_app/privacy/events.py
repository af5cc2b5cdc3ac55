"""Records of differentially private releases: enough to account for them, nothing of the data."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Release:
    """Some steps of the Gaussian mechanism on Poisson-drawn records."""

    sample_rate: float
    """Probability that a record is in a step."""
    noise_multiplier: float
    """The noise's standard deviation over the clipping bound."""
    steps: int
    delta: float

    def __post_init__(self) -> None:
        """Refuse values that no mechanism can have: the accountant would treat them as harmless."""
        if not 0 < self.sample_rate <= 1:
            raise ValueError(f"Release: sample_rate must be in (0, 1], got {self.sample_rate}")
        if not 0 <= self.noise_multiplier < math.inf:
            raise ValueError(
                f"Release: noise_multiplier must be finite and at least 0, got {self.noise_multiplier}"
            )
        if self.steps < 1:
            raise ValueError(f"Release: steps must be at least 1, got {self.steps}")
        if not 0 < self.delta < 1:
            raise ValueError(f"Release: delta must be in (0, 1), got {self.delta}")
