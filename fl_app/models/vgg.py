"""VGG (Simonyan and Zisserman, ICLR 2015) for small images: its convolutions, and a linear output."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from torch import nn

from fl_app.models.settings import ACTIVATIONS, NORMS, check_flag, check_task, choose

WIDTHS = (64, 128, 256, 512, 512)


def vgg11(
    num_classes: int,
    in_shape: Sequence[int],
    norm: str = "batch",
    activation: str = "relu",
    strides: bool = True,
) -> nn.Module:
    """Eight convolutions."""
    return _vgg("vgg11", (1, 1, 2, 2, 2), num_classes, in_shape, norm, activation, strides)


def vgg13(
    num_classes: int,
    in_shape: Sequence[int],
    norm: str = "batch",
    activation: str = "relu",
    strides: bool = True,
) -> nn.Module:
    """Ten convolutions."""
    return _vgg("vgg13", (2, 2, 2, 2, 2), num_classes, in_shape, norm, activation, strides)


def _vgg(
    who: str,
    convolutions: Sequence[int],
    num_classes: int,
    in_shape: Sequence[int],
    norm: str,
    activation: str,
    strides: bool,
) -> nn.Module:
    """Five stages of 3x3 convolutions, each halved by a max-pool, and a mean over all positions.

    ``norm="group"`` has no buffers. Without ``strides`` there are no max-pools, and every
    convolution sees the whole image; with a smooth activation that is twice differentiable.
    """
    channels, _, _ = check_task(who, num_classes, in_shape)
    check_flag(who, "strides", strides)
    norm_of = choose(who, "norm", norm, NORMS)
    layer = choose(who, "activation", activation, ACTIVATIONS)
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for stage, (count, width) in enumerate(zip(convolutions, WIDTHS, strict=True), start=1):
        for i in range(1, count + 1):
            layers[f"conv{stage}_{i}"] = nn.Conv2d(channels, width, 3, padding=1)
            layers[f"norm{stage}_{i}"] = norm_of(width)
            layers[f"act{stage}_{i}"] = layer()
            channels = width
        if strides:
            # rounded up, so that any size can be halved five times
            layers[f"pool{stage}"] = nn.MaxPool2d(2, ceil_mode=True)
    layers["mean"] = nn.AdaptiveAvgPool2d(1)
    layers["flatten"] = nn.Flatten()
    layers["output"] = nn.Linear(channels, num_classes)
    return nn.Sequential(layers)
