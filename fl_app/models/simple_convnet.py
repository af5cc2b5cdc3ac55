"""The eight-convolution ConvNet of the gradient inversion literature (Geiping et al., NeurIPS 2020)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from torch import nn

from fl_app.models.settings import NORMS, check_count, check_task, choose

MULTIPLES = (1, 2, 2, 4, 4, 4, 4, 4)
"""Channels of each convolution, in units of the width."""
POOL_AFTER = (6, 8)
POOL = 3


def convnet(num_classes: int, in_shape: Sequence[int], width: int = 16, norm: str = "batch") -> nn.Module:
    """Eight 3x3 convolutions with ReLU, max-pooling by 3 after the sixth and the eighth, a linear output."""
    channels, height, breadth = check_task("convnet", num_classes, in_shape, least=POOL * POOL)
    check_count("convnet", "width", width)
    norm_of = choose("convnet", "norm", norm, NORMS)

    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for i, multiple in enumerate(MULTIPLES, start=1):
        # the convolution keeps its bias beside a norm, as in the reference: the parameter count depends on it
        layers[f"conv{i}"] = nn.Conv2d(channels, multiple * width, 3, padding=1)
        channels = multiple * width
        layers[f"norm{i}"] = norm_of(channels)
        layers[f"act{i}"] = nn.ReLU()
        if i in POOL_AFTER:
            layers[f"pool{i}"] = nn.MaxPool2d(POOL)
            height, breadth = height // POOL, breadth // POOL
    layers["flatten"] = nn.Flatten()
    layers["output"] = nn.Linear(channels * height * breadth, num_classes)
    return nn.Sequential(layers)
