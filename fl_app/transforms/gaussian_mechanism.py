"""Gaussian mechanism on a whole update: clipping and noise as one transform, never separated."""

from __future__ import annotations

import math

import torch

from fl_app.transforms.noise import with_gaussian
from fl_app.transforms.settings import check_bound, check_strength
from fl_app.transforms.transform import Transform, stateless
from fl_app.types import RoundContext, Update


def clip_and_noise(clip: float, std: float) -> Transform:
    """Scale the update to an L2 norm of at most ``clip``, then add normal noise to every entry.

    The norm is that of all tensors together. ``std`` is the noise's standard
    deviation in the unit of the update, so the noise multiplier is ``std / clip``.
    """
    check_bound("clip_and_noise", "clip", clip)
    check_strength("clip_and_noise", "std", std)

    def rewrite(update: Update, ctx: RoundContext) -> Update:
        clipped = clip_to(update, clip)
        return {name: with_gaussian(tensor, std, ctx.generator) for name, tensor in clipped.items()}

    return stateless(rewrite, released=True)


def clip_to(update: Update, clip: float) -> Update:
    """Return the update, scaled to an L2 norm of at most ``clip`` if it is longer."""
    norm = math.hypot(*(float(torch.linalg.vector_norm(t, dtype=torch.float64)) for t in update.values()))
    if not math.isfinite(norm):
        # no error: a refusal would itself reveal something about the data, and zeros are within the bound
        return {name: torch.zeros_like(tensor) for name, tensor in update.items()}
    if norm <= clip:
        return dict(update)
    # a few roundings below the bound, so that the products' own rounding does not exceed it
    return {
        name: tensor * (clip / norm * (1 - 4 * torch.finfo(tensor.dtype).eps))
        for name, tensor in update.items()
    }
