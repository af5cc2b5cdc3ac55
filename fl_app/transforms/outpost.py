"""Outpost: pruning and selective noise that fade as training goes on (Wang, Hugh, Li, INFOCOM 2023)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fl_app.sketches.selection import floor_count, largest
from fl_app.transforms.noise import with_gaussian
from fl_app.transforms.settings import check_rate, check_share, check_strength
from fl_app.transforms.smallest import without_smallest
from fl_app.transforms.transform import Transform, stateless
from fl_app.types import RoundContext, Trace, Update


def perturb_outpost(
    prune: float = 0.8, noise: float = 0.8, noisy: float = 0.4, beta: float = 0.125
) -> Transform:
    """Perturb the update with a chance of ``1 / (1 + beta * t)``; else send it unchanged.

    A perturbed update loses the smallest ``prune`` of each layer, and then gets
    ``N(0, (risk * noise)**2)`` on the ``noisy`` share of coordinates with the largest
    empirical Fisher information, among them coordinates that were just pruned.
    The risk of a layer is ``min(1, Var(weights))``, the paper's measure of its leakage.

    As in the authors' published code, one draw decides on pruning and noise
    together, Fisher information is that of the gradient before pruning, and its
    ranking goes over all layers at once. There, it is averaged over the first
    axis; here it is the square of each entry, and ties go to the lower index. Their
    ``t`` counts the steps of one round's local training; ours counts rounds from
    0, because an update is perturbed once per round. The first round, where attacks
    are strongest, is thus always perturbed. The variance is the biased one: a
    layer of one weight then has a risk of 0, not an undefined one.
    """
    check_rate("perturb_outpost", "prune", prune)
    check_strength("perturb_outpost", "noise", noise)
    check_share("perturb_outpost", "noisy", noisy)
    check_strength("perturb_outpost", "beta", beta)

    def rewrite(update: Update, ctx: RoundContext) -> Update:
        weights = _weights_of(update, ctx)
        draw = float(torch.rand((), generator=ctx.generator, device=ctx.generator.device))
        if draw >= 1 / (1 + beta * (ctx.round - 1)):
            return dict(update)
        telling = _most_informative(update, noisy)
        perturbed = {}
        for name, tensor in update.items():
            pruned = without_smallest(tensor, prune)
            moved = with_gaussian(pruned, _risk(weights[name]) * noise, ctx.generator)
            perturbed[name] = torch.where(telling[name], moved, pruned)
        return perturbed

    fades = Trace(zeros_sent=True, remark="a late round may come without noise (attack.rounds=last)")
    return stateless(rewrite, traces=(fades,))


def _weights_of(update: Update, ctx: RoundContext) -> Mapping[str, Tensor]:
    weights = ctx.weights or {}
    missing = sorted(update.keys() - weights.keys())
    if missing:
        raise ValueError(
            f"perturb_outpost: ctx.weights must hold every layer's weights, got none for {missing}"
        )
    return weights


def _most_informative(update: Update, share: float) -> dict[str, Tensor]:
    # ranked by magnitude, which is the order of the squares, but does not underflow
    entries = torch.cat([tensor.flatten() for tensor in update.values()])
    mask = largest(entries, floor_count(share, entries.numel()))
    parts = mask.split([tensor.numel() for tensor in update.values()])
    return {name: part.view(update[name].shape) for name, part in zip(update, parts, strict=True)}


def _risk(weights: Tensor) -> float:
    return min(1.0, float(weights.var(correction=0)))
