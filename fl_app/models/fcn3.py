"""The fully connected network of Zhu and Blaschko (ICLR 2021): an `mlp` without biases."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from torch import nn

from fl_app.models.settings import check_features

WIDTHS = (1000, 100)
SLOPE = 0.2
"""Of the LeakyReLU below zero, so that it can be undone."""


def fcn3(num_classes: int, in_shape: Sequence[int]) -> nn.Module:
    """Flatten, two linear layers of 1000 and 100 with LeakyReLU, and a linear output, all without biases.

    The paper's binary task has one logit: ``num_classes=1``.
    """
    features = check_features("fcn3", num_classes, in_shape)
    layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
    for i, width in enumerate(WIDTHS, start=1):
        layers[f"hidden{i}"] = nn.Linear(features, width, bias=False)
        layers[f"act{i}"] = nn.LeakyReLU(SLOPE)
        features = width
    layers["output"] = nn.Linear(features, num_classes, bias=False)
    return nn.Sequential(layers)
