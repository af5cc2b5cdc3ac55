"""Check that no input of the output layer is negative, so that negative row entries name labels alone."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from fl_app.types import Observation

_IMAGES = 4
"""Number of noise images; only behind a ReLU or a sigmoid are none of their many features negative."""


def features_above_zero(obs: Observation, weight: str) -> bool | None:
    """Return the result of a trial on noise; None if the model takes no images or has no such layer."""
    layer = dict(obs.model.named_modules()).get(weight.removesuffix(".weight"))
    if obs.input_shape is None or len(obs.input_shape) != 3 or not isinstance(layer, nn.Linear):
        return None
    model = copy.deepcopy(obs.model).eval()
    seen: list[Tensor] = []
    model.get_submodule(weight.removesuffix(".weight")).register_forward_pre_hook(
        lambda _, given: seen.append(given[0])
    )
    like = obs.update[weight]
    noise = torch.randn(_IMAGES, *obs.input_shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        model(noise.to(like))
    return all(bool((features >= 0).all()) for features in seen) if seen else None
