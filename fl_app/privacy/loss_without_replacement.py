"""Privacy loss of the Gaussian mechanism on a fixed number of clients, drawn without replacement.

Neighbouring federations differ in the data of one client (replace one), so a sum may change by twice the
clipping bound. At rate r, one step that is (e, d)-private without sampling is (e', r d)-private with
``exp(e') = 1 + r (exp(e) - 1)`` (Balle, Barthe and Gaboardi, 2018, Theorem 10). The relation is symmetric,
which gives the profile below e' = 0. Each profile belongs to a pair of distributions, and pairs compose (Zhu,
Dong and Wang, 2022). The pair is discretised on the safe side: its profile is the chord of the exact one
between points of a grid (Doroshenko et al., 2022). Steps are composed by Fourier transforms.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.fft import irfft, next_fast_len, rfft
from scipy.special import log_ndtr

_Floats = NDArray[np.float64]

_STEP = 1e-3
"""Distance of two losses on the grid."""
_TAIL = 1e-4
"""Share of delta reserved for losses outside of the grid."""
_SLOPES = np.geomspace(0.05, 500, 60)
"""Exponents of the bounds on tails."""


def epsilon_without_replacement(steps: Sequence[tuple[float, float, int]], delta: float) -> float:
    """Return epsilon of steps, given as noise multiplier, rate and count."""
    lost = _TAIL * delta / (2 * sum(count for _, _, count in steps))
    single = [(_discretise(sigma, rate, lost), count) for sigma, rate, count in steps]
    widest = max(_reach(single, _TAIL * delta), *(len(masses) // 2 * _STEP for (masses, _), _ in single))
    half = math.ceil(widest / _STEP)
    size = next_fast_len(2 * half + 1, real=True)
    spectrum = np.ones(size // 2 + 1, np.complex128)
    beyond, rounding = 2 * _TAIL * delta, 0.0
    for (masses, infinite), count in single:
        spectrum *= rfft(_around_zero(masses, size)) ** count
        beyond += count * infinite
        rounding += count * np.finfo(np.float64).eps * math.log2(size)
    composed = np.roll(irfft(spectrum, size), half)[: 2 * half + 1].clip(0)
    # rounding errors of a transform are small against the largest mass; add them at every loss
    beyond += rounding * float(composed.max()) * math.sqrt(size)
    return _solve(_grid(half), composed, delta - beyond)


def _grid(half: int) -> _Floats:
    return np.arange(-half, half + 1, dtype=np.float64) * _STEP


def _profile(epsilons: _Floats, sigma: float, rate: float) -> _Floats:
    """Return delta of one step at each epsilon, in order, negative ones too."""
    distance = 2 / sigma
    above = np.abs(epsilons)
    inner = np.log1p(np.expm1(above) / rate)
    near, far = log_ndtr(distance / 2 - inner / distance), log_ndtr(-distance / 2 - inner / distance)
    deltas = rate * np.exp(near) * -np.expm1(np.minimum(inner + far - near, 0))
    profile: _Floats = np.where(epsilons >= 0, deltas, -np.expm1(epsilons) + np.exp(epsilons) * deltas)
    return profile


def _discretise(sigma: float, rate: float, lost: float) -> tuple[_Floats, float]:
    """Return masses of the losses -n..n times the step, and of an infinite loss (about ``lost``)."""
    half = 1
    while _profile(np.array([half * _STEP]), sigma, rate)[0] > lost:
        half *= 2
    epsilons = _grid(half)
    deltas, ratios = _profile(epsilons, sigma, rate), np.exp(epsilons)
    # slopes of the chords; before the first point the chord from (0, 1), after the last one none
    slopes = np.concatenate([[(deltas[0] - 1) / ratios[0]], np.diff(deltas) / np.diff(ratios), [0.0]])
    masses = (np.diff(slopes) * ratios).clip(0)
    return masses, max(0.0, 1 - float(masses.sum()))


def _reach(single: Sequence[tuple[tuple[_Floats, float], int]], tail: float) -> float:
    """Return a loss that the sum of all steps exceeds with probability ``tail`` on each side."""
    reach = 0.0
    for sign in (-1.0, 1.0):
        logs = np.zeros(len(_SLOPES))
        for (masses, _), count in single:
            held = np.flatnonzero(masses > np.finfo(np.float64).tiny)
            losses, shares = sign * _STEP * (held - len(masses) // 2), np.log(masses[held])
            logs += count * np.array([np.logaddexp.reduce(slope * losses + shares) for slope in _SLOPES])
        reach = max(reach, float(np.min((logs - math.log(tail)) / _SLOPES)))
    return reach


def _around_zero(masses: _Floats, size: int) -> _Floats:
    """Return masses reordered: the loss 0 first, negative losses last."""
    half = len(masses) // 2
    wrapped = np.zeros(size)
    wrapped[: half + 1] = masses[half:]
    wrapped[size - half :] = masses[:half]
    return wrapped


def _solve(losses: _Floats, masses: _Floats, delta: float) -> float:
    """Return the least epsilon, from 0 on, at which the losses above it are within ``delta``."""
    if delta <= 0:
        return math.inf
    above, weights = losses[losses > 0], masses[losses > 0]
    # at epsilon: delta = (sum of masses above) - exp(epsilon) (sum of masses over exp(loss))
    first = np.cumsum(weights[::-1])[::-1]
    second = np.cumsum((weights * np.exp(-above))[::-1])[::-1]
    deltas = first - np.exp(np.concatenate([[0.0], above[:-1]])) * second
    if deltas[0] <= delta:
        return 0.0
    last = int(np.flatnonzero(deltas > delta)[-1])  # epsilon lies between this loss and the one before it
    if second[last] == 0 or first[last] <= delta:
        return float(above[last])
    return float(min(math.log((first[last] - delta) / second[last]), above[last]))
