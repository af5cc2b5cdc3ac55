"""Error signal of one photograph, voted on by the 256 levels of its pixels.

For a single sample, a row's gradient is the error signal times the input. If the signal was not
sent, or is only roughly known, the right one puts the pixels on levels.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attacks.active.lone_samples import LEVELS
from attacks.optimisation.problem import Problem

FEWEST = 24
"""Distinct pixels below which some signal puts all of them on levels by chance."""
VOTERS = 24, 96
"""Pixels that vote on all signals, and on those near a majority; in the end all pixels vote."""
NEAR = 0.1
"""A vote: the pixel is this near to a level. Arbitrary numbers give one vote in five."""
MAJORITY, DOUBT = 0.9, 0.3
"""Share of votes that a signal needs, and the allowance while only few pixels vote."""
ROUGH = 0.4
"""The majority for pixels with noise of up to 0.15 levels; chance gives thousands no more than 0.23."""
TIE = 0.05
FINENESS, CONTRAST = 2e-4, 20.0
"""The search's relative step, and how many times the smallest signal with valid pixels it goes up to."""


def per_feature(problem: Problem) -> tuple[Tensor, Tensor]:
    """Return the mean and the deviation with which the model sees each entry of a flat image, in float64."""
    shape = problem.input_shape
    mean, std = (part.double().expand(shape).flatten() for part in (problem.mean, problem.std))
    return mean, std


def signal_by_vote(
    values: Tensor,
    mean: Tensor,
    std: Tensor,
    *,
    given: float | None = None,
    within: float = 0.0,
    majority: float = MAJORITY,
) -> float | None:
    """Return the signal for which ``values / signal * std + mean`` are levels, None if there is no such one.

    All three tensors are (n,). With ``given``, only signals that differ from it by a share
    of up to ``within`` are tried.
    """
    if len(values.unique()) < FEWEST:
        return None
    slopes, offsets = LEVELS * values * std, LEVELS * mean
    candidates = _possible_signals(slopes, offsets) if given is None else _near(given, within).to(values)
    votes = torch.ones_like(candidates)
    for voters in VOTERS:
        # spread over the whole picture, because neighbours are alike
        few = torch.linspace(0, len(values) - 1, min(voters, len(values)), device=values.device).long()
        votes = _votes(slopes[few] / candidates[:, None] + offsets[few])
        near = votes >= majority - DOUBT
        candidates, votes = candidates[near], votes[near]
        if not len(candidates):
            return None
    # the largest of the best: half of it doubles a dark picture's levels, which are levels, too
    best = max(candidates[votes > votes.max() - TIE].tolist(), key=abs)
    for _ in range(3):  # by least squares with the levels found: the search is coarse
        fit = float(slopes @ ((slopes / best + offsets).round() - offsets))
        best = float(slopes @ slopes) / fit if fit else best
    return best if float(_votes((slopes / best + offsets)[None])[0]) >= majority else None


def _possible_signals(slopes: Tensor, offsets: Tensor) -> Tensor:
    """Return signals of both signs that give valid pixels, from the smallest on."""
    steps = torch.arange(math.ceil(math.log(CONTRAST) / FINENESS), device=slopes.device)
    factors = torch.exp(FINENESS * steps.double())
    found = [slopes.new_zeros(0)]
    for sign in (1.0, -1.0):
        ends = torch.where(sign * slopes > 0, LEVELS - offsets, -offsets)
        if not ((ends == 0) & (slopes != 0)).any():  # else a pixel would be below black or above white
            least = (slopes / ends)[ends != 0].abs().max() * (1 - FINENESS)
            found.append(sign * least * factors)
    return torch.cat(found)


def _near(given: float, within: float) -> Tensor:
    steps = math.ceil(within / FINENESS)
    return given * (1 + FINENESS * torch.arange(-steps, steps + 1, device="cpu").double())


def _votes(levels: Tensor) -> Tensor:
    near = ((levels - levels.round()).abs() < NEAR) & (levels > -0.5) & (levels < LEVELS + 0.5)
    return near.double().mean(dim=1)
