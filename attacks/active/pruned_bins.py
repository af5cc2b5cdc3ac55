"""Bins of an imprint block from an update of which single entries were withheld.

Completing the matrix does not help here: rows between the same samples are equal, and pruned
alike, and the rest are as many as the rank. What is left are the pixels at which two
neighbouring rows both survive. There the difference is exact, and the survivors vote on
the error signal: the one for which they are levels of a photograph.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from attacks.active.bins import Bins, bin_sums, block_rows
from attacks.active.lone_samples import LEVELS
from attacks.knowledge import travelled
from attacks.optimisation.problem import Problem
from fl_app.types import Observation

FEWEST = 24
"""Distinct surviving pixels below which some signal puts all of them on levels by chance."""
VOTERS = 96
"""How many survivors are asked in the search; all are in the end."""
NEAR = 0.1
"""A vote: the pixel is this near to a level. Arbitrary numbers give one vote in five."""
MAJORITY = 0.9
FINENESS, CONTRAST = 2e-4, 20.0
"""The search's relative step, and how many times the smallest signal with valid pixels it goes up to."""
ROUNDING = 1e-5
"""Differences below this part of the rows are none."""


def read_pruned_bins(obs: Observation, problem: Problem, path: str) -> Bins:
    """Read the bins of which enough survives; the pixels that do not are filled in from their neighbours."""
    weight, bias = block_rows(obs, problem, path)
    sent, bias_sent = (
        travelled(obs, f"{path}.rows.{name}").to(problem.device) for name in ("weight", "bias")
    )
    known, bias_known = _both(sent), _both(bias_sent)
    vectors, signals = bin_sums(weight, bias)
    level = ROUNDING * weight.abs().max()
    occupied = (known & (vectors.abs() > level)).any(dim=1)
    inputs = torch.full_like(weight, torch.nan)
    single, voted, shares = torch.zeros_like(occupied), 0, []
    for i in occupied.nonzero().flatten().tolist():
        places = known[i].nonzero().flatten()
        signal = float(signals[i]) if bias_known[i] and signals[i] != 0 else None
        found = _signal_by_vote(vectors[i, places], places, problem, signal)
        if found is None:
            continue
        single[i], voted = True, voted + (signal is None)
        shares.append(len(places) / weight.shape[1])
        inputs[i] = _filled(vectors[i] / found, known[i], problem)
    rest = int((occupied & ~single).sum())
    notes = (
        f"adaptive: rows are compared where both survive; {int(single.sum())} bins hold exactly one sample, "
        f"{rest} are mixed or too little of them survives",
        f"{voted} error signals were not sent and are voted on",
        *(
            [f"{min(shares):.0%} to {max(shares):.0%} of their pixels survive, the others are filled in"]
            if shares
            else []
        ),
    )
    return Bins(inputs, occupied, single, True, torch.full_like(occupied, -1, dtype=torch.long), notes)


def _both(sent: Tensor) -> Tensor:
    """Return where a row and the next one survive; above the topmost row there is none."""
    both = sent.clone()
    both[:-1] &= sent[1:]
    return both


def _signal_by_vote(values: Tensor, places: Tensor, problem: Problem, given: float | None) -> float | None:
    """Return the error signal for which ``values`` over it are levels, None if there is no such one."""
    if len(values.unique()) < FEWEST:
        return None
    channel = places // (problem.input_shape[1] * problem.input_shape[2])
    mean, std = (part.flatten().double()[channel] for part in (problem.mean, problem.std))
    slopes = LEVELS * values * std
    offsets = LEVELS * mean
    candidates = _possible_signals(slopes, offsets) if given is None else values.new_tensor([given])
    if not len(candidates):
        return None
    # spread over the whole picture: neighbours are alike
    few = torch.linspace(0, len(values) - 1, min(VOTERS, len(values)), device=values.device).long()
    votes = _votes(slopes[few] / candidates[:, None] + offsets[few])
    best = candidates[votes.argmax()]
    for _ in range(3):  # by least squares with the levels found: the search is coarse
        levels = (slopes / best + offsets).round() - offsets
        best = (slopes @ slopes) / (slopes @ levels) if (slopes @ levels) != 0 else best
    return float(best) if _votes((slopes / best + offsets)[None])[0] >= MAJORITY else None


def _possible_signals(slopes: Tensor, offsets: Tensor) -> Tensor:
    """Return signals of both signs that give valid pixels, from the smallest on."""
    steps = torch.arange(math.ceil(math.log(CONTRAST) / FINENESS), device=slopes.device)
    factors = torch.exp(FINENESS * steps.double())
    found = []
    for sign in (1.0, -1.0):
        ends = torch.where(sign * slopes > 0, LEVELS - offsets, -offsets)
        least = (slopes / ends)[ends != 0].abs().max() * (1 - FINENESS)
        found.append(sign * least * factors)
    return torch.cat(found)


def _votes(levels: Tensor) -> Tensor:
    near = ((levels - levels.round()).abs() < NEAR) & (levels > -0.5) & (levels < LEVELS + 0.5)
    return near.double().mean(dim=1)


def _filled(values: Tensor, known: Tensor, problem: Problem) -> Tensor:
    """Return the input with what is not known taken from its neighbours, ring by ring."""
    shape = (1, *problem.input_shape)
    mask = known.view(shape).double()
    picture = torch.where(known, values, 0).view(shape)
    while not mask.all():
        sums, counts = (F.avg_pool2d(part, 3, stride=1, padding=1) for part in (picture, mask))
        grown = (counts > 0).double()
        if torch.equal(grown, mask):  # a channel of which nothing survives stays at its mean
            break
        picture = torch.where((mask == 0) & (counts > 0), sums / counts.clamp_min(1e-9), picture)
        mask = grown
    return picture.flatten()
