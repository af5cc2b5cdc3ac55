"""Bins of an imprint block, read from a pruned update.

Completing the matrix does not help here: rows between the same samples are equal and equally
pruned, and there are only as many others as the rank. Only pixels at which two neighbouring
rows both survive remain. There the difference is exact, and the survivors vote for the error
signal that makes them levels of a photograph. Other pixels are guessed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attacks.active.bins import Bins, block_rows
from attacks.active.fill_in import fill_in, largest_withheld
from attacks.active.level_votes import per_feature, signal_by_vote
from attacks.knowledge import travelled
from attacks.optimisation.problem import Problem
from fl_app.types import Observation

ROUNDING = 1e-5
"""Differences below this part of the rows count as zero."""
TIES = 3
"""Equal rows may be pruned differently at this many entries, where the threshold has equals."""


def read_pruned_bins(obs: Observation, problem: Problem, path: str) -> Bins:
    """Read the bins of which enough survives, and fill in the missing pixels."""
    weight, bias = block_rows(obs, problem, path)
    sent, bias_sent = (
        travelled(obs, f"{path}.rows.{name}").to(problem.device) for name in ("weight", "bias")
    )
    occupied = _occupied(weight, sent)
    rows = occupied.nonzero().flatten()
    # between two of these rows all bins are empty, so their difference is the lower one's bin
    signals = _differences(bias[rows])
    signals = torch.where(_both(bias_sent[rows]) & (signals != 0), signals, torch.nan)
    known = _both(sent[rows])
    vectors = _differences(weight[rows])
    mean, std = per_feature(problem)
    single, found = torch.zeros_like(rows, dtype=torch.bool), torch.zeros_like(signals)
    for i, places in enumerate(known):
        given = None if signals[i].isnan() else float(signals[i])
        voted = signal_by_vote(vectors[i, places], mean[places], std[places], given=given)
        single[i] = voted is not None
        found[i] = _size(vectors[i, places], weight) if voted is None else voted
    most = largest_withheld(obs, f"{path}.rows.weight").to(problem.device)
    filled = _differences(fill_in(weight[rows], sent[rows], most[rows], found, problem.input_shape))
    inputs, alone = torch.full_like(weight, torch.nan), torch.zeros_like(occupied)
    inputs[rows[single]], alone[rows[single]] = (filled / found[:, None])[single], True
    shares = known[single].double().mean(dim=1)
    notes = (
        f"adaptive: rows are compared where both survive; {int(single.sum())} bins hold exactly one sample, "
        f"{int((~single).sum())} are mixed or too little of them survives",
        f"{int((single & signals.isnan()).sum())} error signals were not sent and are voted on",
        *(
            [f"{shares.min():.0%} to {shares.max():.0%} of their pixels survive, the others are filled in"]
            if len(shares)
            else []
        ),
    )
    labels = torch.full_like(occupied, -1, dtype=torch.long)
    return Bins(inputs, occupied, alone, True, alone, labels, notes)


def _occupied(weight: Tensor, sent: Tensor) -> Tensor:
    """Return the mask (K,) of bins with samples, whose row differs from the next in values or pruning."""
    level = ROUNDING * weight.abs().max()
    occupied = (_both(sent) & (_differences(weight).abs() > level)).any(dim=1)
    occupied[:-1] |= (sent[:-1] != sent[1:]).sum(dim=1) > TIES
    return occupied


def _differences(rows: Tensor) -> Tensor:
    """Return each row minus the next; the topmost row has no next one."""
    return rows - torch.cat([rows[1:], torch.zeros_like(rows[:1])])


def _both(sent: Tensor) -> Tensor:
    """Return where a row and the next one survive; the topmost row has no next one."""
    return sent & torch.cat([sent[1:], torch.ones_like(sent[:1])])


def _size(survivors: Tensor, weight: Tensor) -> Tensor:
    """Estimate the size of a mixture's error signals; inputs are about 1."""
    values = survivors if len(survivors) else weight[weight != 0]
    return values.square().mean().sqrt().clamp_min(ROUNDING * weight.abs().max())
