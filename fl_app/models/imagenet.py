"""Networks for ImageNet as torchvision builds them, untrained.

Layers have torchvision's names, so that its weights, saved as safetensors, are such as ``init=FILE`` takes.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from fl_app.models.settings import check_task
from fl_app.models.torchvision_cpu import import_torchvision


def efficientnet_b0(num_classes: int, in_shape: Sequence[int]) -> nn.Module:
    """EfficientNet-B0 (Tan and Le, ICML 2019): swish, so that features have both signs."""
    return _imagenet("efficientnet_b0", "efficientnet_b0", num_classes, in_shape)


def resnet50_imagenet(num_classes: int, in_shape: Sequence[int]) -> nn.Module:
    """ResNet-50 with ImageNet's stem: 7x7 of stride 2 and a max-pool, where `resnet50` has 3x3."""
    return _imagenet("resnet50_imagenet", "resnet50", num_classes, in_shape)


def _imagenet(who: str, name: str, num_classes: int, in_shape: Sequence[int]) -> nn.Module:
    channels, _, _ = check_task(who, num_classes, in_shape)
    network: nn.Module = getattr(import_torchvision("models"), name)(weights=None, num_classes=num_classes)
    if channels != 3:
        _see_channels(network, channels)
    for module in network.modules():
        if getattr(module, "inplace", False):
            module.inplace = False  # type: ignore[assignment]  # as in all models: attacks need what was there
    return network


def _see_channels(network: nn.Module, channels: int) -> None:
    """Replace the first convolution by one with this many channels."""
    path, first = next((path, m) for path, m in network.named_modules() if isinstance(m, nn.Conv2d))
    settings = {key: getattr(first, key) for key in ("kernel_size", "stride", "padding")}
    network.set_submodule(path, nn.Conv2d(channels, first.out_channels, **settings, bias=False))
