"""What a differentially private client released: enough to account for it, and nothing of its data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Release:
    """Some steps of the Gaussian mechanism on Poisson-drawn records."""

    sample_rate: float
    """The chance of a record to be in a step."""
    noise_multiplier: float
    """The noise's standard deviation over the clipping bound."""
    steps: int
    delta: float
