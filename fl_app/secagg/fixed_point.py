"""Fixed-point encoding: real vectors as integers modulo 2^bits, with room for a cohort's sum.

Masks hide a number perfectly only in a finite group, so values become multiples of a step, modulo a power
of two. A value out of range is clamped, never refused: an error that depends on a client's data would
leak something about it. A cohort that could overflow is an error, since this depends on settings alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Words = NDArray[np.unsignedinteger[Any]]
"""Numbers modulo 2^bits in the low bits of unsigned words; higher bits are meaningless."""

WIDTHS = tuple(range(8, 65, 8))
_MOST_LEVELS = 1 << 52  # beyond that, float64 cannot represent every whole number


@dataclass(frozen=True)
class FixedPoint:
    """Multiples of ``step`` between ``-bound`` and ``bound``, modulo ``2**bits``."""

    bound: float
    step: float
    bits: int

    def __post_init__(self) -> None:
        """Refuse a grid without points, or one that a word cannot hold."""
        for name, value in (("bound", self.bound), ("step", self.step)):
            if not 0 < value < math.inf:
                raise ValueError(f"FixedPoint: {name} must be positive and finite, got {value}")
        if not 1 <= self.bound / self.step <= _MOST_LEVELS:
            raise ValueError(
                f"FixedPoint: bound / step must be in [1, 2**52], got {self.bound} / {self.step}"
            )
        if self.bits not in WIDTHS:
            raise ValueError(f"FixedPoint: bits must be one of {WIDTHS}, got {self.bits}")

    @property
    def levels(self) -> int:
        """The largest multiple of the step that one client can send."""
        return round(self.bound / self.step)

    @property
    def word(self) -> np.dtype[Any]:
        """Word type for the arithmetic: the shortest that holds ``bits``, little-endian on every machine."""
        return np.dtype("<u2" if self.bits <= 16 else "<u4" if self.bits <= 32 else "<u8")

    def check_room(self, clients: int) -> None:
        """Refuse a cohort whose sum could wrap around."""
        if clients * self.levels > _largest(self.bits):
            raise ValueError(
                f"FixedPoint: {clients} clients with {self.levels} levels each need a sum of up to "
                f"{clients * self.levels}, {self.bits} bits hold {_largest(self.bits)}"
            )

    def encode(self, values: ArrayLike) -> Words:
        """Round a vector to multiples of the step; clamp values out of range, NaN becomes 0."""
        reals = np.clip(np.asarray(values, dtype=np.float64).reshape(-1), -self.bound, self.bound)
        multiples = np.rint(np.nan_to_num(reals, copy=False, nan=0.0) / self.step)
        return np.clip(multiples, -self.levels, self.levels).astype(np.int64).astype(self.word)

    def wrap(self, multiples: NDArray[np.int64]) -> Words:
        """Return whole multiples of the step modulo ``2**bits``, without clamping."""
        return multiples.astype(np.int64).astype(self.word)

    def decode(self, words: Words) -> NDArray[np.float64]:
        """Return the real vector of one or of many summed encodings."""
        return self.signed(words).astype(np.float64) * self.step

    def signed(self, words: Words) -> NDArray[np.int64]:
        """Return multiples of the step; the upper half of the range modulo 2^bits is negative."""
        above = np.int64(64 - self.bits)
        return (words.astype(np.uint64) << above.astype(np.uint64)).view(np.int64) >> above

    def pack(self, words: Words) -> bytes:
        """Write the low ``bits`` of every word."""
        octets = np.ascontiguousarray(words, self.word).view(np.uint8).reshape(-1, self.word.itemsize)
        return octets[:, : self.bits // 8].tobytes()

    def unpack(self, packed: bytes | memoryview) -> Words:
        """Read what `pack` wrote."""
        octets = np.frombuffer(packed, np.uint8).reshape(-1, self.bits // 8)
        words = np.zeros((octets.shape[0], self.word.itemsize), np.uint8)
        words[:, : self.bits // 8] = octets
        return words.view(self.word).reshape(-1)


def fit_fixed_point(*, bound: float, step: float, clients: int) -> FixedPoint:
    """Return the shortest fixed-point format in which the sum of ``clients`` vectors cannot overflow."""
    widest = FixedPoint(bound, step, WIDTHS[-1])
    widest.check_room(clients)
    bits = next(bits for bits in WIDTHS if clients * widest.levels <= _largest(bits))
    return FixedPoint(bound, step, bits)


def _largest(bits: int) -> int:
    return (1 << (bits - 1)) - 1
