"""ResNet-18 (He et al., CVPR 2016) for small images: a 3x3 stem and no max-pool before the first block."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

from torch import Tensor, nn

from fl_app.models.settings import ACTIVATIONS, NORMS, check_task, choose

WIDTHS = (64, 128, 256, 512)
BLOCKS_PER_STAGE = 2

Layer = Callable[[], nn.Module]
Norm = Callable[[int], nn.Module]


def resnet18(
    num_classes: int,
    in_shape: Sequence[int],
    norm: str = "batch",
    activation: str = "relu",
) -> nn.Module:
    """A stem, four stages of two residual blocks, a mean over all positions, and a linear output.

    ``norm="group"`` is the form for secure aggregation and differential privacy: it has no buffers.
    """
    channels, _, _ = check_task("resnet18", num_classes, in_shape)
    # not "none": a residual network without a norm needs an initialisation of its own
    norm_of = choose("resnet18", "norm", norm, {name: NORMS[name] for name in ("batch", "group")})
    layer = choose("resnet18", "activation", activation, ACTIVATIONS)

    layers: OrderedDict[str, nn.Module] = OrderedDict(
        conv=nn.Conv2d(channels, WIDTHS[0], 3, padding=1, bias=False),
        norm=norm_of(WIDTHS[0]),
        act=layer(),
    )
    channels = WIDTHS[0]
    for i, width in enumerate(WIDTHS, start=1):
        stride = 1 if i == 1 else 2
        layers[f"stage{i}"] = _stage(channels, width, stride, norm_of, layer)
        channels = width
    layers["pool"] = nn.AdaptiveAvgPool2d(1)
    layers["flatten"] = nn.Flatten()
    layers["output"] = nn.Linear(channels, num_classes)
    return nn.Sequential(layers)


def _stage(channels: int, width: int, stride: int, norm_of: Norm, layer: Layer) -> nn.Sequential:
    first = ResidualBlock(channels, width, stride, norm_of, layer)
    rest = (ResidualBlock(width, width, 1, norm_of, layer) for _ in range(BLOCKS_PER_STAGE - 1))
    return nn.Sequential(first, *rest)


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut, which is a 1x1 convolution where the shape changes."""

    def __init__(self, channels: int, width: int, stride: int, norm_of: Norm, layer: Layer) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, stride=stride, padding=1, bias=False)
        self.norm1 = norm_of(width)
        self.act1 = layer()
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = norm_of(width)
        self.shortcut = nn.Sequential()
        if stride != 1 or channels != width:
            self.shortcut = nn.Sequential(
                OrderedDict(
                    conv=nn.Conv2d(channels, width, 1, stride=stride, bias=False),
                    norm=norm_of(width),
                )
            )
        self.act2 = layer()

    def forward(self, x: Tensor) -> Tensor:
        """Add the branch to the shortcut, then activate."""
        branch = self.norm2(self.conv2(self.act1(self.norm1(self.conv1(x)))))
        return self.act2(branch + self.shortcut(x))
