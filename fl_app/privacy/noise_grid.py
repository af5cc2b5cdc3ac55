"""Grid of whole numbers for a clipped vector and its noise, which secure aggregation sums.

A client rounds its clipped vector to multiples of a step and adds discrete Gaussian noise (the distributed
discrete Gaussian of Kairouz, Liu and Steinke, ICML 2021). Rounding may lengthen the vector a little; the
noise grows with that bound, so the accounted noise multiplier stays correct. The sum wraps around
modulo a power of two, which costs no privacy; the range makes that practically impossible.

A sum of n discrete Gaussians is not quite a discrete Gaussian: their Rényi divergences differ by at most
``10 n exp(-pi^2 variance)`` a coordinate, which is below 1e-900 at the smallest variance allowed here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fl_app.privacy.conditional_rounding import round_conditionally, rounded_norm
from fl_app.privacy.discrete_gaussian import LARGEST_VARIANCE, Bits, Whole, sample_discrete_gaussian

SMALLEST_VARIANCE = 15**2
"""Smallest variance of one client's noise, in squared steps."""
MOST_INFLATION = 1.02
"""Rounding may lengthen a vector, and so the noise, by 2 % at most."""
REACH = 10.0
"""Deviations of a sum's noise that fit into the range."""
_STEPS = tuple(2**i for i in range(4, 14))


@dataclass(frozen=True)
class NoiseGrid:
    """Grid and noise of one client, which depend on settings alone, never on data."""

    step: float
    clip: float
    size: int
    variance: int
    """Variance of one client's share of the noise, in squared steps."""

    @classmethod
    def fit(cls, *, clip: float, multiplier: float, size: int) -> NoiseGrid:
        """Return the coarsest grid on which rounding lengthens a vector by `MOST_INFLATION` at most.

        ``multiplier`` is the noise multiplier of one client's share.
        """
        for steps in _STEPS:
            step = clip * multiplier / steps
            if rounded_norm(clip / step, size) <= MOST_INFLATION * clip / step or steps == _STEPS[-1]:
                break
        return cls.of_step(step, clip=clip, multiplier=multiplier, size=size)

    @classmethod
    def of_step(cls, step: float, *, clip: float, multiplier: float, size: int) -> NoiseGrid:
        """Return the grid with a given step; the noise adapts to it, so no step weakens the protection."""
        if not (0 < step < math.inf and 0 < clip < math.inf and 0 < multiplier < math.inf):
            raise ValueError(
                "NoiseGrid: step, clip and multiplier must be finite and above 0, "
                f"got {step}, {clip}, {multiplier}"
            )
        variance = math.ceil((multiplier * rounded_norm(clip / step, size)) ** 2)
        if not SMALLEST_VARIANCE <= variance <= LARGEST_VARIANCE:
            raise ValueError(
                f"NoiseGrid: a step of {step:g} makes the noise's variance {variance} squared steps; "
                f"expected {SMALLEST_VARIANCE} to {LARGEST_VARIANCE}"
            )
        return cls(step, clip, size, variance)

    def bound(self, cohort: int) -> float:
        """Return the part of the sum's range that one client needs."""
        return self.clip + self.step * (1 + REACH * math.sqrt(self.variance / cohort))

    def protect(self, values: Tensor, bits: Bits) -> Whole:
        """Return a clipped vector in whole steps with one share of noise."""
        reals = values.detach().to("cpu", torch.float64).numpy() / self.step
        rounded = round_conditionally(reals, self.clip / self.step, bits=bits)
        return rounded + sample_discrete_gaussian(self.variance, self.size, bits)

    def shares(self, count: int, bits: Bits) -> Whole:
        """Return the noise of ``count`` shares, in place of clients whose vector is not in a sum."""
        total = np.zeros(self.size, np.int64)
        for _ in range(count):
            total += sample_discrete_gaussian(self.variance, self.size, bits)
        return total
