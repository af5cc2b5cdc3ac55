"""Additive noise on every entry (Zhu et al., NeurIPS 2019, §5.1).

Noise without clipping gives no privacy guarantee; `clip_and_noise` does.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fl_app.privacy.draws import exponential, normal
from fl_app.transforms.settings import check_strength
from fl_app.transforms.transform import Transform, stateless
from fl_app.types import Trace


def add_gaussian(std: float) -> Transform:
    """Add independent normal noise with standard deviation ``std`` to every entry."""
    check_strength("add_gaussian", "std", std)
    return stateless(
        lambda update, ctx: {n: with_gaussian(tensor, std, ctx.generator) for n, tensor in update.items()},
        traces=(Trace(noise=std),),
    )


def add_laplace(std: float) -> Transform:
    """Add independent Laplace noise to every entry.

    ``std`` is its standard deviation, as with `add_gaussian`, not its scale:
    the scale is ``std / sqrt(2)``.
    """
    check_strength("add_laplace", "std", std)
    return stateless(
        lambda update, ctx: {n: _with_laplace(tensor, std, ctx.generator) for n, tensor in update.items()},
        traces=(Trace(noise=std),),
    )


def with_gaussian(tensor: Tensor, std: float, generator: torch.Generator) -> Tensor:
    """Return ``tensor`` plus normal noise, or ``tensor`` itself and no draw if ``std`` is 0."""
    if std == 0:
        return tensor  # not a sum: -0.0 + 0.0 is 0.0
    return tensor + std * normal(tensor, generator)


def _with_laplace(tensor: Tensor, std: float, generator: torch.Generator) -> Tensor:
    if std == 0:
        return tensor
    # the difference of two exponentials: inverse transform sampling would occasionally
    # take the logarithm of 0
    noise = exponential(tensor, generator) - exponential(tensor, generator)
    return tensor + std / math.sqrt(2) * noise
