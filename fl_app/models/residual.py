"""Residual networks (He et al., CVPR 2016) for small images: a 3x3 stem, no max-pool before the first block.

All have the same settings. ``norm="group"`` is the form for secure aggregation and differential
privacy: it has no buffers. ``activation="sigmoid", strides=False`` is the form on which Zhu et al.
(NeurIPS 2019) search for images: it is twice differentiable, and every block sees all positions.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

from fl_app.models.settings import ACTIVATIONS, NORMS, check_flag, check_task, choose

WIDE, NARROW = (64, 128, 256, 512), (16, 32, 64)
"""Channels of the stages: for ImageNet, and for CIFAR."""

Plan = Sequence[tuple[int, int, int]]
"""Kernel, channels and stride of each convolution of a block."""


class Shape(NamedTuple):
    """Dimensions that distinguish residual networks."""

    name: str
    widths: Sequence[int]
    blocks: Sequence[int]
    """Number of blocks of each stage."""
    plan: Callable[[int, int], Plan]
    """The convolutions of a block, by the width and the stride of its stage."""
    padded: bool = False
    """Shortcuts have no parameters: where channels are added, the new ones are zero."""


class Layers(NamedTuple):
    """Parts of a block beside its convolutions."""

    norm: Callable[[int], nn.Module]
    activation: Callable[[], nn.Module]
    padded: bool


def basic(width: int, stride: int) -> Plan:
    """Two 3x3 convolutions."""
    return (3, width, stride), (3, width, 1)


def bottleneck(width: int, stride: int) -> Plan:
    """A 3x3 convolution between two of 1x1, the last one four times as wide.

    The stride is that of the 3x3 convolution, which sees all positions; in the paper it is the first one's.
    """
    return (1, width, 1), (3, width, stride), (1, 4 * width, 1)


def resnet18(
    num_classes: int,
    in_shape: Sequence[int],
    norm: str = "batch",
    activation: str = "relu",
    strides: bool = True,
) -> nn.Module:
    """Four stages of two basic blocks."""
    shape = Shape("resnet18", WIDE, (2, 2, 2, 2), basic)
    return _resnet(shape, num_classes, in_shape, norm, activation, strides)


def resnet20(
    num_classes: int,
    in_shape: Sequence[int],
    norm: str = "batch",
    activation: str = "relu",
    strides: bool = True,
) -> nn.Module:
    """The narrow form for CIFAR: three stages of three basic blocks."""
    shape = Shape("resnet20", NARROW, (3, 3, 3), basic, padded=True)
    return _resnet(shape, num_classes, in_shape, norm, activation, strides)


def resnet34(
    num_classes: int,
    in_shape: Sequence[int],
    norm: str = "batch",
    activation: str = "relu",
    strides: bool = True,
) -> nn.Module:
    """Four stages of 3, 4, 6 and 3 basic blocks."""
    shape = Shape("resnet34", WIDE, (3, 4, 6, 3), basic)
    return _resnet(shape, num_classes, in_shape, norm, activation, strides)


def resnet50(
    num_classes: int,
    in_shape: Sequence[int],
    norm: str = "batch",
    activation: str = "relu",
    strides: bool = True,
) -> nn.Module:
    """Four stages of 3, 4, 6 and 3 bottleneck blocks."""
    shape = Shape("resnet50", WIDE, (3, 4, 6, 3), bottleneck)
    return _resnet(shape, num_classes, in_shape, norm, activation, strides)


def resnet56(
    num_classes: int,
    in_shape: Sequence[int],
    norm: str = "batch",
    activation: str = "relu",
    strides: bool = True,
) -> nn.Module:
    """The narrow form for CIFAR: three stages of nine basic blocks."""
    shape = Shape("resnet56", NARROW, (9, 9, 9), basic, padded=True)
    return _resnet(shape, num_classes, in_shape, norm, activation, strides)


def _resnet(
    shape: Shape, num_classes: int, in_shape: Sequence[int], norm: str, activation: str, strides: bool
) -> nn.Module:
    """A stem, the stages, a mean over all positions, and a linear output.

    Every stage but the first halves the image, unless there are no ``strides``.
    """
    channels, _, _ = check_task(shape.name, num_classes, in_shape)
    check_flag(shape.name, "strides", strides)
    # not "none": a residual network without a norm needs an initialisation of its own
    norm_of = choose(shape.name, "norm", norm, {name: NORMS[name] for name in ("batch", "group")})
    layer = choose(shape.name, "activation", activation, ACTIVATIONS)

    width = shape.widths[0]
    layers: OrderedDict[str, nn.Module] = OrderedDict(
        conv=nn.Conv2d(channels, width, 3, padding=1, bias=False), norm=norm_of(width), act=layer()
    )
    channels = width
    for i, (width, count) in enumerate(zip(shape.widths, shape.blocks, strict=True), start=1):
        blocks = []
        for number in range(count):
            stride = 2 if strides and number == 0 and i > 1 else 1
            plan = shape.plan(width, stride)
            blocks.append(ResidualBlock(channels, plan, Layers(norm_of, layer, shape.padded)))
            channels = plan[-1][1]
        layers[f"stage{i}"] = nn.Sequential(*blocks)
    layers["pool"] = nn.AdaptiveAvgPool2d(1)
    layers["flatten"] = nn.Flatten()
    layers["output"] = nn.Linear(channels, num_classes)
    return nn.Sequential(layers)


class ResidualBlock(nn.Module):
    """Convolutions with norms beside a shortcut, an activation after each but the last, and after the sum."""

    def __init__(self, channels: int, plan: Plan, layers: Layers) -> None:
        super().__init__()
        self.depth = len(plan)
        into, whole_stride = channels, 1
        for i, (kernel, width, stride) in enumerate(plan, start=1):
            convolution = nn.Conv2d(into, width, kernel, stride=stride, padding=kernel // 2, bias=False)
            self.add_module(f"conv{i}", convolution)
            self.add_module(f"norm{i}", layers.norm(width))
            self.add_module(f"act{i}", layers.activation())
            into, whole_stride = width, whole_stride * stride
        self.shortcut = _shortcut(channels, into, whole_stride, layers)

    def forward(self, x: Tensor) -> Tensor:
        """Add the branch to the shortcut, then activate."""
        branch = x
        for i in range(1, self.depth + 1):
            branch = getattr(self, f"norm{i}")(getattr(self, f"conv{i}")(branch))
            if i == self.depth:
                branch = branch + self.shortcut(x)
            branch = getattr(self, f"act{i}")(branch)
        return branch


def _shortcut(channels: int, width: int, stride: int, layers: Layers) -> nn.Module:
    """Return the identity; a 1x1 convolution or a padding where the shape changes."""
    if stride == 1 and channels == width:
        return nn.Sequential()
    if layers.padded:
        return PaddedShortcut(width - channels, stride)
    convolution = nn.Conv2d(channels, width, 1, stride=stride, bias=False)
    return nn.Sequential(OrderedDict(conv=convolution, norm=layers.norm(width)))


class PaddedShortcut(nn.Module):
    """Every position of a stride, and more channels that are zero."""

    def __init__(self, more: int, stride: int) -> None:
        super().__init__()
        self.more, self.stride = more, stride

    def forward(self, x: Tensor) -> Tensor:
        """Leave out positions and append channels."""
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.more))
