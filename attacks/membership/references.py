"""Tests against reference models: RMIA (Zarifzadeh et al. 2024) and LiRA (Carlini et al. 2022)."""

from __future__ import annotations

import torch
from torch import Tensor

_LEAST = 1e-30
_NARROWEST = 1e-3
"""Least standard deviation of log-odds: shadow models that agree exactly prove nothing more."""


def rmia(
    target: Tensor,
    shadows: Tensor,
    members: Tensor,
    population: Tensor,
    population_shadows: Tensor,
    *,
    gamma: float = 1.0,
) -> Tensor:
    """Return the share of public records than which each candidate has grown likelier by factor ``gamma``.

    Arguments are probabilities of the true class: of the candidates (N,) by the target, (K, N) by the
    shadows, of the population (M,) and (K, M). A candidate's average over the worlds with and without it is
    the mean of its two sides, whatever their numbers; a side without a shadow counts as the other.
    """
    ratio = target / _both_sides(shadows, members).clamp_min(_LEAST)
    public = population / population_shadows.mean(dim=0).clamp_min(_LEAST)
    return (ratio.unsqueeze(1) > gamma * public.unsqueeze(0)).double().mean(dim=1)


def lira(target: Tensor, shadows: Tensor, members: Tensor) -> Tensor:
    """Return the log-likelihood ratio of the target's log-odds (N,) between shadows (K, N) with and without.

    Few shadows tell a mean for each record, and one variance for all of them.
    """
    inside, outside = _side(shadows, members), _side(shadows, ~members)
    counts_in, counts_out = members.sum(dim=0), (~members).sum(dim=0)
    known = (counts_in > 0) & (counts_out > 0)
    if not bool(known.any()):
        raise ValueError("lira: no candidate has shadows with and without it")
    gap = inside - outside
    # where one side is missing, the mean gap of all others stands for it
    usual = gap[known].mean()
    inside = torch.where(counts_in > 0, inside, outside + usual)
    outside = torch.where(counts_out > 0, outside, inside - usual)
    centres = torch.where(members, inside.unsqueeze(0), outside.unsqueeze(0))
    freedom = int(shadows.numel() - (counts_in > 0).sum() - (counts_out > 0).sum())
    variance = ((shadows - centres) ** 2).sum() / max(1, freedom)
    variance = variance.clamp_min(_NARROWEST**2)
    return ((target - outside) ** 2 - (target - inside) ** 2) / (2 * variance)


def _both_sides(values: Tensor, members: Tensor) -> Tensor:
    inside, outside = _side(values, members), _side(values, ~members)
    inside = torch.where(members.any(dim=0), inside, outside)
    outside = torch.where((~members).any(dim=0), outside, inside)
    return (inside + outside) / 2


def _side(values: Tensor, chosen: Tensor) -> Tensor:
    return (values * chosen).sum(dim=0) / chosen.sum(dim=0).clamp_min(1)
