"""The fully connected network of Zhu and Blaschko (ICLR 2021): an `mlp` without biases."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from torch import nn

from fl_app.models.settings import check_features, outputs

WIDTHS = (1000, 100)
SLOPE = 0.2
"""Slope of the LeakyReLU below zero, so that it can be inverted."""


def fcn3(num_classes: int, in_shape: Sequence[int], one_logit: bool = False) -> nn.Module:
    """Flatten, two linear layers of 1000 and 100 with LeakyReLU, and a linear output, all without biases.

    The paper's task has two classes and ``one_logit``, which is large for the second.
    """
    features = check_features("fcn3", num_classes, in_shape)
    logits = outputs("fcn3", num_classes, one_logit)
    layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
    for i, width in enumerate(WIDTHS, start=1):
        layers[f"hidden{i}"] = nn.Linear(features, width, bias=False)
        layers[f"act{i}"] = nn.LeakyReLU(SLOPE)
        features = width
    layers["output"] = nn.Linear(features, logits, bias=False)
    return nn.Sequential(layers)
