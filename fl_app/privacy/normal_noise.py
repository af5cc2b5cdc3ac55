"""Standard normal noise: replayable for simulation, or from the operating system.

Noise from a seeded generator protects nothing from an observer who knows the seed. The other source
takes its bits from the operating system and turns them into normal numbers in double precision by Box
and Muller's transform.

Its limits: radii are ``sqrt(-2 ln u)`` with u a multiple of 2^-53 above 0, so no number exceeds 8.6 (a
normal one does with probability 1e-17), and the numbers lie on a fine grid that depends on u. An
observer of all bits of a value plus such noise might tell values apart by that grid (Mironov, CCS
2012). Sent values must therefore be rounded to a much coarser step: the fixed-point step of secure
aggregation suffices, and float32 is the minimum.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

Noise = Callable[[int], Tensor]
"""Source of standard normal numbers: returns the requested count as float64 on the CPU."""


def replayable_noise(generator: torch.Generator) -> Noise:
    """Draw from a seeded generator."""
    return lambda count: torch.randn(count, generator=generator, dtype=torch.float64, device="cpu")


def secure_noise() -> Noise:
    """Draw from the operating system."""
    return _box_muller


def secure_uniform(count: int) -> Tensor:
    """Return numbers in [0, 1) from the operating system, multiples of 2^-53."""
    return torch.from_numpy(_words(count) * 2.0**-53)


def _box_muller(count: int) -> Tensor:
    pairs = -(-count // 2)
    radius = np.sqrt(-2.0 * np.log((_words(pairs) + 1.0) * 2.0**-53))
    angle = 2.0 * np.pi * (_words(pairs) * 2.0**-53)
    both = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])
    return torch.from_numpy(both[:count].copy())


def _words(count: int) -> np.ndarray:
    """Return random whole numbers of 53 bits: all of them are exact as doubles."""
    return (np.frombuffer(os.urandom(8 * count), dtype=np.uint64) >> np.uint64(11)).astype(np.float64)
