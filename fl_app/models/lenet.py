"""The small convolutional network on which Zhu et al. (NeurIPS 2019) showed deep leakage from gradients."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import torch
from torch import nn

from fl_app.models.settings import ACTIVATIONS, check_task, choose

CHANNELS = 12
WIDE = 0.5
"""DLG draws every weight and bias uniformly in ±0.5, far wider than usual."""


def lenet_zhu(
    num_classes: int,
    in_shape: Sequence[int],
    activation: str = "relu",
    wide_init: bool | None = None,
) -> nn.Module:
    """Three 5x5 convolutions of 12 channels with strides 2, 2, 1, and a linear output.

    ``wide_init`` draws all parameters uniformly in ±0.5; None does so for the sigmoid alone, as DLG did.
    """
    channels, height, width = check_task("lenet_zhu", num_classes, in_shape)
    layer = choose("lenet_zhu", "activation", activation, ACTIVATIONS)
    if wide_init not in (None, True, False):
        raise ValueError(f"lenet_zhu: wide_init must be true, false or null, got {wide_init!r}")
    # a 5x5 kernel with padding 2 and stride 2 leaves ceil(n / 2)
    features = CHANNELS * -(-height // 4) * -(-width // 4)
    model = nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(channels, CHANNELS, 5, stride=2, padding=2),
            act1=layer(),
            conv2=nn.Conv2d(CHANNELS, CHANNELS, 5, stride=2, padding=2),
            act2=layer(),
            conv3=nn.Conv2d(CHANNELS, CHANNELS, 5, stride=1, padding=2),
            act3=layer(),
            flatten=nn.Flatten(),
            output=nn.Linear(features, num_classes),
        )
    )
    if wide_init or (wide_init is None and activation == "sigmoid"):
        _draw_uniformly(model)
    return model


@torch.no_grad()
def _draw_uniformly(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.uniform_(-WIDE, WIDE)
