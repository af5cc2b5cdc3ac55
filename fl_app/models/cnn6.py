"""The convolutional network on which Zhu and Blaschko (ICLR 2021) solve gradients for their image."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from torch import nn

from fl_app.models.settings import check_count, check_task, outputs

SLOPE = 0.2
"""Slope of the LeakyReLU below zero, so that it can be inverted."""


def cnn6(num_classes: int, in_shape: Sequence[int], second: int = 36, one_logit: bool = False) -> nn.Module:
    """Six convolutions and a linear output without biases or pooling, a LeakyReLU after each convolution.

    ``second`` is the width of the second convolution: with 20 (CNN6-d) the gradient of 32x32
    images leaves its input open. The paper's task has two classes and ``one_logit``, which is
    large for the second.
    """
    channels, height, width = check_task("cnn6", num_classes, in_shape)
    check_count("cnn6", "second", second)
    logits = outputs("cnn6", num_classes, one_logit)
    # channels, kernel, stride, padding
    plan = [(12, 4, 2, 2), (second, 3, 2, 1), (36, 3, 1, 1), (36, 3, 1, 1), (64, 3, 2, 1), (128, 3, 1, 1)]
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for i, (wide, kernel, stride, padding) in enumerate(plan, start=1):
        layers[f"conv{i}"] = nn.Conv2d(channels, wide, kernel, stride, padding, bias=False)
        layers[f"act{i}"] = nn.LeakyReLU(SLOPE)
        channels = wide
        height, width = ((n + 2 * padding - kernel) // stride + 1 for n in (height, width))
    layers["flatten"] = nn.Flatten()
    layers["output"] = nn.Linear(channels * height * width, logits, bias=False)
    return nn.Sequential(layers)
